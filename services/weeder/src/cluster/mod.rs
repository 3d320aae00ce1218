//! Everything that talks to the seed's API server.

pub mod annotations;
pub mod discovery;
pub mod namespaces;
pub mod needs;
pub mod objects;

pub mod pod_requests;
pub mod pod_watches;
pub mod services;
mod trimmed;
pub mod worker;
