//! Runs the rules: one prober for each shoot that this replica probes.

pub mod prober;
pub mod prober_manager;
mod supervisor;
mod trace;
