//! weeder: deletes the crash-looping dependants of a service once that service is ready again.
//!
//! `domain` holds the rules, `controller` runs them, `cluster` talks to the seed, `grpc` serves the API, and only `app`
//! joins them.

pub mod app;
mod cluster;
pub mod config;
mod controller;
mod domain;
mod grpc;
mod metrics;

pub use self::grpc::service::WeederApi;
