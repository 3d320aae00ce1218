//! The rules of probing, pure: what is expired, what counts as evidence, what follows from it, when to look again.
//! Time is an argument everywhere; nothing here does I/O or reads a clock.

pub mod address;
pub mod answered;
pub mod assessment;
pub mod candidates;
pub mod endpoint;
#[cfg(test)]
mod fixtures;
pub mod lease_list;
pub mod outcome;
pub mod probe_state;
pub mod renewals;
pub(crate) mod schedule;
mod skew;
pub mod verdict;
pub mod witnesses;
