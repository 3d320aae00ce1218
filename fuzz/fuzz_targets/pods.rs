#![no_main]
//! See [`watchdog_fuzz::pods`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::pods(data));
