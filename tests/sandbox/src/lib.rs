//! An in-memory Kubernetes API over HTTPS, and simulated shoots behind it.

mod api;
mod audit;
mod auth;
mod error;
mod faults;
mod io;
mod kubeconfig;
pub mod resource;
mod sandbox;
mod schema;
mod server;
mod sim;
pub mod status;
pub mod store;
mod time;
mod tls;

pub use api::KUBERNETES_VERSION;
pub use audit::AuditEntry;
pub use auth::{Attributes, Rule};
pub use error::SandboxError;
pub use faults::{Fault, FaultAction, FaultId, Matcher};
pub use sandbox::{Sandbox, SandboxConfig};
pub use server::{ApiOptions, ApiServer, Counters};
pub use sim::{
    Cut, MachineView, NEEDS_ANNOTATION, NodeView, PROBE_SECRET, PodView, Shoot, ShootSpec, ShootState,
    SimTiming, WorkloadView,
};
