//! The gRPC API: request checks and conversion. No kube types.

pub mod convert;
pub mod service;
