//! The whole weeder against a seed in memory.

#![cfg(test)]
#![allow(unreachable_pub, reason = "shared by the modules of this test")]

mod api;
mod faults;
mod harm;
mod leadership;
mod observe;
mod seed;
mod weeding;
