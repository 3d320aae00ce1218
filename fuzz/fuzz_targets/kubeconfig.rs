#![no_main]
//! See [`watchdog_fuzz::kubeconfig`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::kubeconfig(data));
