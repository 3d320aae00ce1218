//! Typed subset of the Kubernetes, Gardener and machine-controller-manager objects that the watchdog reads, the names
//! that it writes, and its configuration files.
#![warn(missing_docs)]

pub mod cluster;
pub mod config;
pub mod duration;
pub mod eligibility;
pub mod kubeconfig;
pub mod lease;
pub mod lenient;
pub mod list;
pub mod machine;
mod meta;
pub mod names;
pub mod node;
pub mod prober;
pub mod selector;
mod text;
pub mod weeder;
pub mod workload;
mod yaml;
