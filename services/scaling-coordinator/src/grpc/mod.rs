//! The gRPC side: the streams from lease-probe, request checks, domain <-> proto. No kube types.

pub(crate) mod convert;
pub(crate) mod observers;
pub(crate) mod service;
