//! The rules: when a service is ready, when it recovered, and which pods are then deleted. Time is an argument
//! everywhere; nothing here does I/O or reads a clock.
//!
//! `rule::decide` makes a `PodDecision` (or gives a `KeepReason`) from a `Pod` (`NamespacedName`, `ControllerRef`,
//! `CrashLoop`) and a `Recovery`, which `Recovery::of` makes from each `Slice` of a service (`Endpoints`,
//! `SliceWrite`). With `WeederConfig` and `UnixTime`, these twelve types are all that a change of the rule needs.
//! `weeder` and `deletion_result` record what was done, for the API, the log and the metrics, and `kept_back` what mode
//! observe would have done.

pub(crate) mod deletion_result;
#[cfg(test)]
pub(crate) mod fixtures;
pub(crate) mod kept_back;
pub(crate) mod namespaced_name;
pub(crate) mod pods;
pub(crate) mod readiness;
pub(crate) mod recovery;
pub(crate) mod rule;
pub(crate) mod weeder;
