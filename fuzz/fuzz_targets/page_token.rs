#![no_main]
//! See [`watchdog_fuzz::page_token`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::page_token(data));
