//! The rules: when a service is ready, when it recovered, and which pods are then deleted. Time is an argument
//! everywhere; nothing here does I/O or reads a clock.

pub(crate) mod deletion_result;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod namespaced_name;
pub mod pods;
pub mod readiness;
pub(crate) mod recovery;
pub(crate) mod rule;
pub(crate) mod weeder;
