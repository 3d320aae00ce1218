//! scaling-coordinator: scales the dependants of a shoot down when its nodes are cut off, and up again, level by
//! level.
//!
//! `domain` holds the rules, `controller` runs them, `cluster` talks to the seed, `grpc` serves the API, and only
//! `app` joins them. The indexes of `cluster` add changed shoots to a work queue, from which `controller` takes them,
//! so `cluster` does not depend on `controller`.

pub mod app;
mod cluster;
pub mod config;
mod controller;
pub mod domain;
mod grpc;
mod metrics;

pub use grpc::service::ScalingApi;
