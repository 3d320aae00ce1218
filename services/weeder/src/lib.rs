//! weeder: deletes the crash-looping dependants of a service once that service is ready again.
//!
//! `domain` holds the rules, `controller` runs them, `cluster` talks to the seed, `grpc` serves the API, and only `app`
//! joins them.

pub mod app;
mod cluster;
pub mod config;
mod controller;
pub mod domain;
pub mod fuzz;
mod grpc;
mod metrics;
