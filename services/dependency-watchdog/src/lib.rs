//! dependency-watchdog: the services in the place of Gardener's Go program, with its command line
//! and its permissions.
//!
//! One replica leads, by the Go program's own Lease. The others watch the same objects, and neither probe nor write.
//! `prober` is lease-probe and scaling-coordinator in one process, `weeder` is weeder. Nothing here decides anything
//! about a shoot (ADR 0004).

pub mod args;
mod go_flags;
pub mod roles;
