//! The gRPC API: request checks and conversion. No kube types.

mod convert;
pub(crate) mod service;
