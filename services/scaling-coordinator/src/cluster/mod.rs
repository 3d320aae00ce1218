//! Everything that talks to the seed's Kubernetes API: the indexes of Clusters and of the configured resources, and
//! the writes.

pub mod clusters;
pub mod kinds;
pub(crate) mod other_replicas;
pub mod permissions;
pub mod resources;
pub mod version;
pub mod watched_resources;
pub mod watches;
pub mod writer;
