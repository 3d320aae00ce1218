//! Everything about talking to a Kubernetes API that the services share: clients, watches that keep an index,
//! deadlines, the permission preflight, certificates, Kubernetes Events, the members of a service and its leader.

pub mod authority;
pub mod client;
pub mod events;
pub mod key;
pub mod leadership;
pub mod members;
pub mod metrics;
pub mod permissions;
pub mod replica;
pub mod seed;
mod stored_lease;
pub mod watch;

/// Name of a replica: that of its Pod.
pub type Identity = std::sync::Arc<str>;
