//! The gRPC side: request checks, domain <-> proto. No kube types.

pub(crate) mod convert;
pub(crate) mod service;
