//! Runs the rule: the state that follows from the watches, and the worker that deletes.

pub(crate) mod collector;
mod deletion;
mod notices;
pub(crate) mod state;
pub(crate) mod worker;
