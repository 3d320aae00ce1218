#![no_main]
//! See [`watchdog_fuzz::nodes`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::nodes(data));
