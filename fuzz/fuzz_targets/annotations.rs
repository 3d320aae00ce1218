#![no_main]
//! See [`watchdog_fuzz::annotations`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::annotations(data));
