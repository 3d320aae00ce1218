//! Everything that talks to a Kubernetes API: the seed's and those of the shoots.

pub mod connection;
pub mod gate;
pub mod machines;
pub mod prober;
pub mod registry;
pub mod shoot_api;
pub mod source;
mod supervisor;
pub mod tls;
mod trace;
pub mod watches;
