//! weeder: deletes the crash-looping dependants of a service once that service is ready again.
//!
//! `domain` holds the rules, `cluster` talks to the seed, `grpc` serves what the weeder sees and does, and only `app`
//! joins them.

pub mod app;
pub mod cluster;
pub mod config;
pub mod domain;
pub mod grpc;
pub mod metrics;
pub mod scrape;
pub mod state;
