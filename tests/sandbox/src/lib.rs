//! An in-memory Kubernetes API over HTTPS, and simulated shoots behind it.
//!
//! [`ApiServer`] is one API server on loopback: generic objects of the kinds that the watchdog has to do with,
//! watches, scale sub-resources, authentication and rules as the real one has them, plus faults on command and
//! an audit log. [`Sandbox`] is a seed with any number of [`SimulatedShoot`]s: each has an API server of its own, and
//! its kubelets, controllers and control-plane pods are simulated by one task that writes to both stores.
//!
//! ```no_run
//! # async fn example() -> Result<(), watchdog_sandbox::SandboxError> {
//! use watchdog_sandbox::{Cut, Sandbox, SandboxConfig, SimulatedShootSpec, SimTiming};
//!
//! let config = SandboxConfig { timing: SimTiming::scaled(10.0), ..SandboxConfig::default() };
//! let sandbox = Sandbox::start(config).await?;
//! let shoot = sandbox.add_shoot(SimulatedShootSpec::new("alpha", 5)).await?;
//! let kubeconfig = sandbox.seed().kubeconfig("lease-probe");
//! shoot.cut(Cut::All);
//! # Ok(())
//! # }
//! ```
//!
//! It serves what the programs and their tests ask for, and decides as kube-apiserver does where the programs depend on
//! it: revisions, watches, preconditions, the parts of an object that a write may change, who wrote a field last. It
//! takes any JSON object: types and validity are those of the tests on real API servers. It takes merge patches only,
//! has Protobuf only for lists of Leases, and selects by fields only the name. It has no server-side apply, no dry run,
//! no tables, no list of API groups, no watch lists, no finalizers and no deletion of collections. The simulation
//! writes EndpointSlices and no Endpoints.

#![allow(missing_docs, reason = "no API: only tests use it")]
#![allow(
    clippy::indexing_slicing,
    reason = "into JSON that the sandbox made itself; a failed test may panic"
)]

mod api;
mod audit;
mod auth;
pub mod cli;
mod control;
mod error;
mod faults;
pub mod hostile;
pub mod io;
mod kubeconfig;
mod listener;
pub mod protobuf;
pub mod resource;
mod sandbox;
mod server;
mod sim;
pub mod status;
pub mod store;
mod time;
mod tls;

pub use audit::AuditEntry;
pub use auth::Rule;
pub use control::Control;
pub use error::SandboxError;
pub use faults::{Fault, FaultAction, FaultId};
pub use sandbox::{Sandbox, SandboxConfig};
pub use server::{ApiOptions, ApiServer, Counters};
pub use sim::{
    Cut, MachineView, NodeView, PROBE_SECRET, PodView, SimTiming, SimulatedShoot, SimulatedShootSpec,
    WorkloadView,
};
