//! One thing is wrong: a program is frozen, its machine gives it too little CPU, no file descriptor, no disk or another
//! time. There is no false verdict and no write. The log, /readyz and a metric name the cause while it lasts, and the
//! same process protects shoots again once it is gone. Faults of the whole system are in the binary `scenarios`.
//!
//! Faults strike one after the other, because they share a real control plane.

#![cfg(test)]

mod clock;
mod cpu;
mod disk;
mod file_descriptors;
mod fleet;
mod frozen;

use std::time::Duration;

use fleet::Fleet;

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_stand_still() {
    let mut fleet = Fleet::start("stand-still").await.unwrap();
    frozen::play(&mut fleet, Duration::from_secs(5)).await;
    // Longer than a Lease is valid, that of a member or of the leader, and than a silent watch is trusted.
    frozen::play(&mut fleet, Duration::from_secs(40)).await;
    cpu::play(&mut fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_lack_something() {
    let mut fleet = Fleet::start("lack").await.unwrap();
    file_descriptors::lease_probe_blames_itself(&mut fleet).await;
    file_descriptors::a_coordinator_writes_nothing_late(&mut fleet).await;
    clock::play(&mut fleet).await;
    disk::play(&mut fleet).await;
}
