//! Everything that talks to a Kubernetes API: the seed's and those of the shoots.
//!
//! A list of Leases goes from [`shoot_client`], which knows its time and what failures mean, over `pages` and
//! [`connection`], which keeps one connection and replaces a dead one, to the socket in [`http`].

pub mod connection;
pub mod http;
pub mod kubeconfig;
pub mod limits;
pub mod machines;
mod pages;
pub mod permissions;
mod resolver;
pub mod shoot_client;
pub mod transport;
pub mod watches;

pub use pages::LARGEST_PAGE;
