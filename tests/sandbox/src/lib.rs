//! An in-memory Kubernetes API over HTTPS, and simulated shoots behind it.

mod api;
mod audit;
mod auth;
mod error;
mod faults;
mod io;
mod kubeconfig;
pub mod resource;
mod schema;
mod server;
pub mod status;
pub mod store;
mod time;
mod tls;

pub use api::KUBERNETES_VERSION;
pub use audit::AuditEntry;
pub use auth::{Attributes, Rule};
pub use error::SandboxError;
pub use faults::{Fault, FaultAction, FaultId, Matcher};
pub use server::{ApiOptions, ApiServer, Counters};
