//! The gRPC API: request checks, conversion, and the view over all replicas. No kube types.

pub mod convert;
pub mod merge;
pub mod service;
pub mod view;
