//! The gRPC API: request checks and conversion. No kube types.

pub(crate) mod convert;
pub(crate) mod service;
