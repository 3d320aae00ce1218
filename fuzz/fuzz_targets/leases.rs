#![no_main]
//! See [`watchdog_fuzz::leases`].

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchdog_fuzz::leases(data));
