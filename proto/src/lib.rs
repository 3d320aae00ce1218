//! The wire contract of the dependency watchdog: messages, gRPC clients and servers, and the descriptor set that
//! reflection serves. The protos beside this crate are the source; nothing here has behavior.

// Generated code: its documentation is the comments of the protos.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::unwrap_used,
    clippy::panic
)]

/// `gardener.watchdog.*`
pub mod stream {
    /// `gardener.watchdog.stream.v1`
    pub mod v1 {
        tonic::include_proto!("gardener.watchdog.stream.v1");
    }
}

/// Verdicts of lease-probe.
pub mod probe {
    /// `gardener.watchdog.probe.v1`
    pub mod v1 {
        tonic::include_proto!("gardener.watchdog.probe.v1");
    }
}

/// State of scaling-coordinator.
pub mod scaling {
    /// `gardener.watchdog.scaling.v1`
    pub mod v1 {
        tonic::include_proto!("gardener.watchdog.scaling.v1");
    }
}

/// State of weeder.
pub mod weeder {
    /// `gardener.watchdog.weeder.v1`
    pub mod v1 {
        tonic::include_proto!("gardener.watchdog.weeder.v1");
    }
}

/// Encoded `FileDescriptorSet` of all packages, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/watchdog.binpb"));
