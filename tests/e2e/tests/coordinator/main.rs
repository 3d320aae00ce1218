//! scaling-coordinator as a process, driven by verdicts that the test gives.

#![cfg(test)]

mod cost;
mod crashes;
mod fixture;
mod kubernetes;
mod kubernetes_half_open;
mod kubernetes_observe;
mod kubernetes_restored;
mod sources;
