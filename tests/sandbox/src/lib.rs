//! An in-memory Kubernetes API over HTTPS.
//!
//! [`ApiServer`] is one API server on loopback: generic objects of the kinds that the watchdog has to do with, watches,
//! scale sub-resources, authentication and rules as the real one has them, plus faults on command and an audit log.
//!
//! ```no_run
//! # async fn example() -> Result<(), watchdog_sandbox::SandboxError> {
//! use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};
//!
//! let seed = ApiServer::start(ApiOptions::default()).await?;
//! let kubeconfig = seed.kubeconfig("lease-probe");
//! seed.inject(Fault::always(FaultAction::Hang).user("lease-probe"));
//! # Ok(())
//! # }
//! ```
//!
//! It serves what the programs and their tests ask for, and decides as kube-apiserver does where the programs depend on
//! it: revisions, watches, preconditions, the parts of an object that a write may change, who wrote a field last. It
//! takes any JSON object: types and validity are those of the tests on real API servers. It takes merge patches only,
//! has Protobuf only for lists of Leases, and selects by fields only the name. It has no server-side apply, no dry run,
//! no tables, no list of API groups, no watch lists, no finalizers and no deletion of collections.

#![allow(missing_docs, reason = "no API: only tests use it")]
#![allow(
    clippy::indexing_slicing,
    reason = "into JSON that the sandbox made itself; a failed test may panic"
)]

mod api;
mod audit;
mod auth;
mod error;
mod faults;
pub mod hostile;
pub mod io;
mod kubeconfig;
mod listener;
pub mod protobuf;
pub mod resource;
mod server;
pub mod status;
pub mod store;
mod tls;

pub use api::ResponseBody;
pub use audit::AuditEntry;
pub use auth::Rule;
pub use error::SandboxError;
pub use faults::{Fault, FaultAction, FaultId};
pub use server::{ApiOptions, ApiServer, Counters};
