//! The gRPC API: request checks, conversion, and the view over all replicas. No kube types.

pub(crate) mod convert;
pub(crate) mod merge;
pub(crate) mod service;
pub(crate) mod view;
