//! Kubernetes I/O: watches of the seed, requests, and the permissions for them.

pub(crate) mod annotations;
pub(crate) mod discovery;
pub(crate) mod namespaces;
mod objects;
pub(crate) mod pace;
pub(crate) mod permissions;
pub(crate) mod pod_requests;
pub(crate) mod pods;
pub(crate) mod services;
mod trimmed;
