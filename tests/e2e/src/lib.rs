//! The basis of the end-to-end tests and the demo: child processes that never outlive their test, waiting with a
//! bound, and (in [`real`]) real Kubernetes control planes.
//!
//! Errors are `anyhow` throughout: a test or the demo shows them to a person and stops, nobody matches on them.

pub mod acceptance;
pub mod binaries;
pub mod certs;
pub mod coordinator;
pub mod demo;
pub mod fixtures;
pub mod history;
pub mod log;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod real;
pub mod sandboxed;
pub mod scratch;
mod spawner;
pub mod tools;
pub mod wait;
pub mod watch_proxy;
pub mod watchdog;
