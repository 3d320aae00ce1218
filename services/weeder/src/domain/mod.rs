//! The rules, pure: when is a service ready, which pods depend on it, and which of them may be deleted when? Time is an
//! argument everywhere; nothing here does I/O or reads a clock.

pub(crate) mod attempts;
pub(crate) mod backoff;
pub(crate) mod declared;
pub(crate) mod dependants;
pub(crate) mod evidence;
pub(crate) mod failure;
#[cfg(test)]
pub(crate) mod fixtures;
pub(crate) mod flapping;
pub mod namespaced_name;
pub(crate) mod namespaces;
pub mod pods;
pub mod readiness;
pub(crate) mod schedule;
pub(crate) mod weeder;
