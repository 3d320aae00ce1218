//! lease-probe: watches the node leases of every shoot and streams health verdicts.
//!
//! `domain` holds the rules, `controller` runs them, `cluster` talks to the seed and to the shoots, `grpc` serves the
//! verdicts, and only `app` joins them.

pub mod app;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod domain;
mod grpc;
mod metrics;

pub use grpc::service::LeaseProbeApi;
