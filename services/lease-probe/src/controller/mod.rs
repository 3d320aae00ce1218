//! Runs the rules: one prober for each shoot that this replica probes.

pub(crate) mod collector;
mod internal_probe;
mod probe_context;
pub mod prober;
pub mod prober_manager;
mod supervisor;
