#![no_main]
//! See [`watchdog_fuzz::endpoints`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::endpoints(data));
