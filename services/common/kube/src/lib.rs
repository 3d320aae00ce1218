//! Everything about talking to a Kubernetes API that the services share: clients, watches that keep an index,
//! deadlines, the permission preflight, certificates, Kubernetes Events, membership of replicas.

pub mod authority;
pub mod client;
pub mod events;
pub mod key;
pub mod leadership;
pub mod membership;
pub mod metrics;
pub mod permissions;
pub mod replica;
mod stored_lease;
pub mod watch;
