//! Everything that talks to a Kubernetes API: the seed's and those of the shoots.

pub mod connect_limiter;
pub mod connection;
pub mod http;
pub mod machines;
pub mod permissions;
pub mod requests;
pub mod shoot_client;
pub mod tls;
pub mod transport;
pub mod watches;
