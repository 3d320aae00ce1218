//! scaling-coordinator: scales the dependants of a shoot down when its nodes are cut off, and up again, level by
//! level.
//!
//! `domain` holds the rules, `cluster` talks to the seed, `grpc` serves and follows streams, `engine` drives the
//! rules with what the others see and do, and only `app` joins them.

pub mod app;
pub mod cluster;
pub mod config;
pub mod contexts;
pub mod domain;
pub mod engine;
pub mod grpc;
pub mod metrics;
pub mod release;
pub mod scrape;
pub mod verdicts;
pub mod wake;
