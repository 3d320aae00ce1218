#![no_main]
//! See [`watchdog_fuzz::cluster`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::cluster(data));
