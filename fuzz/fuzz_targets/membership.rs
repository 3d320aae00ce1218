#![no_main]
//! See [`watchdog_fuzz::membership`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::membership(data));
