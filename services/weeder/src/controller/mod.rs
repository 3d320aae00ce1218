//! Runs the rules: the state, the schedule of requests, and the worker that makes them.

pub(crate) mod manager;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod watches;
pub(crate) mod worker;
