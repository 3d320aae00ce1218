//! The process of every service of the dependency watchdog: arguments, logs, metrics, admin HTTP, named
//! readiness blockers, the gRPC server with its limits and TLS, gRPC channels to peers, reloading of files, drain.
//!
//! A service's `main` parses its configuration and calls [`process::run`]; its `app` binds a
//! [`service_builder::ServiceBuilder`], spawns its parts as critical tasks, and serves.

mod accept;
pub mod admin;
mod admin_server;
pub mod allowed_clients;
pub mod args;
mod caller_quota;
pub mod cli;
pub mod clock;
pub mod config_file;
pub mod connection_tasks;
mod file_watch;
pub mod grpc_server;
pub mod listeners;
mod log_line;
pub mod metrics;
mod open_files;
pub mod process;
pub mod publish;
pub mod readiness;
mod refusal_log;
mod replica_metadata;
pub mod request;
pub mod rpc_error;
mod rpc_limits;
pub mod rpc_metrics;
mod self_check;
pub mod service_builder;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod token_bucket;
pub mod work_queue;

pub use watchdog_client::{backoff, failure, grpc_client, regular_file};

/// The allocator of every program that links this crate. A service probes or writes a thousand times a second from
/// several threads; what that saves against the C library's is in docs/explanation/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
