//! Everything that talks to the seed's Kubernetes API: the indexes of Clusters and of the configured resources, and
//! the writes.

pub(crate) mod clusters;
pub(crate) mod deployment;
pub(crate) mod kinds;
pub(crate) mod object_index;
pub(crate) mod permissions;
pub(crate) mod requests;
pub(crate) mod resources;
pub(crate) mod watches;
