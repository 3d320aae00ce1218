#![no_main]
//! See [`watchdog_fuzz::requests`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::requests(data));
