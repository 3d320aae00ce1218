//! The whole of lease-probe against a seed and shoots in memory.

#![cfg(test)]
#![allow(unreachable_pub, reason = "shared by the modules of this test")]

mod api;
mod candidates;
mod changes;
mod cost;
mod eligible_shoots;
mod failures;
mod fixture;
mod hostile;
mod losses;
mod outage;
mod replica;
mod replicas;
mod stream;

use watchdog_test_support::in_process::{self, eventually, eventually_async};
use watchdog_test_support::wait::{self, BOUND};
