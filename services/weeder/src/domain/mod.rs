//! The rules: when a service is ready, when it recovered, and which pods are then deleted. Time is an argument
//! everywhere; nothing here does I/O or reads a clock.
//!
//! `rule::decide` makes a `PodDecision` (or gives a `KeepReason`) from a `Pod` (`NamespacedName`, `ControllerRef`,
//! `CrashLoop`) and a `Recovery`, which `Recovery::of` makes from each `Slice` of a service (`Endpoints`,
//! `SliceWrite`). With `WeederConfig` and `UnixTime`, these twelve types are all that a change of the rule needs.
//! `weeder` and `deletion_result` record what was done, for the API, the log and the metrics.

pub(crate) mod deletion_result;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod namespaced_name;
pub mod pods;
pub mod readiness;
pub(crate) mod recovery;
pub(crate) mod rule;
pub(crate) mod weeder;
