//! The gRPC side: the streams from lease-probe, request checks, domain <-> proto. No kube types.

pub mod convert;
pub mod observers;
pub mod service;
