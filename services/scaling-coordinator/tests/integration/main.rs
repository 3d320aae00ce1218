//! The whole coordinator against an API server in memory and a lease-probe that the test drives.

#![cfg(test)]
#![allow(unreachable_pub, reason = "shared by the modules of this test")]

mod api;
mod bulk;
mod coordinator;
mod dropped;
mod faults;
mod flows;
mod half_open;
mod kinds;
mod leadership;
mod observe;
mod release;
mod restored;
mod seed;
mod streams;

use watchdog_test_support::fixtures::{CA, KCM, MCM};
use watchdog_test_support::in_process::{eventually, eventually_async};
use watchdog_test_support::wait::BOUND;

/// A shoot's namespace.
const SHOOT: &str = "shoot--project--one";
