#![no_main]
#![allow(clippy::expect_used, reason = "only fuzz/run starts it")]
//! Fuzzes the decoder of [`watchdog_fuzz::TARGETS`] that the environment variable `TARGET` names.

use std::sync::LazyLock;

use watchdog_fuzz::{FuzzTarget, TARGETS};

static TARGET: LazyLock<FuzzTarget> = LazyLock::new(|| {
    let name = std::env::var("TARGET").expect("TARGET is set");
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.expect("a decoder that is known").1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (*TARGET)(data));
