//! Membership against an API server: replicas come, go, die, are cut off, and are disturbed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    unreachable_pub,
    reason = "a failed test may panic"
)]

mod cluster;
mod faults;
mod handover;
mod observers;
#[path = "../support/mod.rs"]
mod support;
