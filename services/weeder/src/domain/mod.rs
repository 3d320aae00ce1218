//! The rules, pure: when is a service ready, when did it recover, and which pods are deleted for that? Time is an
//! argument everywhere; nothing here does I/O or reads a clock.

pub(crate) mod deletion_result;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod namespaced_name;
pub mod pods;
pub mod readiness;
pub(crate) mod recovery;
pub(crate) mod rule;
pub(crate) mod weeder;
