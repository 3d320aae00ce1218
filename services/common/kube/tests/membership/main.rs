//! Membership against an API server: replicas come, go, die, are cut off, and are overwritten.

#![cfg(test)]
#![allow(unreachable_pub, reason = "shared by the modules of this test")]

mod cluster;
mod faults;
mod handover;
mod observers;
