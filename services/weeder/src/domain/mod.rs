//! The rules of weeding, pure: when is a service ready, which pods depend on it, which of them are to be deleted, and
//! what is to be asked of the API server next. Time is an argument everywhere; nothing here does I/O or reads a clock.

pub mod backoff;
pub mod candidates;
pub mod declared;
pub mod dependants;
pub mod failure;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod model;
pub mod moment;
pub mod namespaces;
pub mod pods;
pub mod readiness;
pub mod schedule;
pub mod service;
pub mod task;
pub mod weeder;
pub mod weeding;
