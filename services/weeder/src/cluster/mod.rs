//! Kubernetes I/O: watches of the seed, deletions, and the permissions for them.

pub(crate) mod deletion;
pub(crate) mod discovery;
mod objects;
pub(crate) mod pace;
pub(crate) mod permissions;
pub(crate) mod watches;
