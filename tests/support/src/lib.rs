//! Shared by the tests, the demo and the benchmarks, one of each: child processes that never outlive their test,
//! waiting with a bound, proxies, the services as processes and in process ([`in_process`]), simulated shoots
//! ([`simulation`]) and their nodes ([`nodes`]), real Kubernetes control planes ([`real`]), and the checker of what
//! happened ([`history`]).
//!
//! Errors are `anyhow` throughout: a test or the demo shows them to a person and stops, nobody matches on them.

#![allow(missing_docs, reason = "no API: only tests use it")]

pub mod binaries;
pub mod browser;
pub mod certs;
pub mod coordinator;
pub mod crash_loop;
pub mod fake_probe;
pub mod fault_proxy;
pub mod fixtures;
pub mod history;
pub mod http_exchange;
pub mod in_process;
pub mod log;
pub mod nodes;
pub mod page_process;
pub mod ports;
pub mod process;
pub mod real;
pub mod resource_usage;
pub mod sandboxed;
pub mod scratch;
pub mod separate_runtime;
pub mod simulation;
mod spawner;
pub mod tools;
pub mod wait;
pub mod watchdog;
pub mod workload_controller;
