//! Reports writes as log lines and Kubernetes Events.

use k8s_openapi::api::core::v1::ObjectReference;
use watchdog_kube::events::Notice;

use super::write_counts;
use crate::domain::Direction;
use crate::domain::flow::{Action, ActionOutcome};
use crate::domain::next_step::ResourceWrite;

/// A write in words.
pub(super) fn what(write: &ResourceWrite) -> String {
    match write {
        ResourceWrite::Record { replicas } => format!("record {replicas} replicas"),
        ResourceWrite::Scale {
            from,
            to,
            record: false,
            ..
        } => format!("scale from {from} to {to}"),
        ResourceWrite::Scale { from, to, .. } => format!("record {from} replicas and scale to {to}"),
        ResourceWrite::CleanUp => "remove meltdown-protection-active".to_owned(),
    }
}

/// Logs what became of a write.
pub(super) fn written(shoot: &str, action: &Action, write: &ResourceWrite, outcome: &ActionOutcome) {
    let resource = &action.reference;
    let (direction, result) = (action.direction.as_str(), write_counts::result(outcome));
    let what = what(write);
    match outcome {
        ActionOutcome::Done => tracing::info!(shoot, %resource, direction, what, "a write was applied"),
        ActionOutcome::Conflict => {
            tracing::info!(shoot, %resource, direction, what, "a write met a newer version of its resource; deciding again")
        }
        ActionOutcome::Cancelled => {
            tracing::info!(shoot, %resource, direction, what, "a write was cancelled because it is not allowed any more")
        }
        ActionOutcome::Refused { why, .. } | ActionOutcome::Unknown { why, .. } => {
            tracing::warn!(shoot, %resource, direction, what, result, error = why, "a write failed");
        }
    }
}

/// Logs why a read failed. It is made again.
pub(super) fn read(shoot: &str, action: &Action, outcome: &ActionOutcome) {
    let (resource, direction) = (&action.reference, action.direction.as_str());
    match outcome {
        ActionOutcome::Refused { why, .. } | ActionOutcome::Unknown { why, .. } => {
            tracing::warn!(shoot, %resource, direction, error = why, "a read of a resource failed; reading it again later");
        }
        ActionOutcome::Done | ActionOutcome::Conflict | ActionOutcome::Cancelled => {}
    }
}

/// The Kubernetes Events about an applied write.
pub(super) fn events(
    about: ObjectReference,
    action: &Action,
    write: &ResourceWrite,
    reason: &str,
) -> Vec<Notice> {
    let (from, to, unreadable) = match write {
        ResourceWrite::Scale {
            from, to, unreadable, ..
        } => (from, to, unreadable),
        ResourceWrite::CleanUp if action.direction == Direction::Release => {
            return vec![Notice {
                about,
                warning: false,
                reason: "MeltdownProtectionReleased",
                action: "Released",
                note: format!(
                    "Removed meltdown-protection-active; the replicas are left to others. {reason}"
                ),
            }];
        }
        ResourceWrite::Record { .. } | ResourceWrite::CleanUp => return Vec::new(),
    };
    let mut events = Vec::new();
    if let Some(text) = unreadable {
        events.push(Notice {
            about: about.clone(),
            warning: true,
            reason: "RecordedReplicasUnreadable",
            action: "ScaledUp",
            note: format!("The recorded replica count {text:?} cannot be read; scaled to {to} instead."),
        });
    }
    let (event, action) = match action.direction {
        Direction::Down => ("MeltdownProtectionStarted", "ScaledDown"),
        Direction::Up | Direction::Release => ("MeltdownProtectionEnded", "ScaledUp"),
    };
    events.push(Notice {
        about,
        warning: false,
        reason: event,
        action,
        note: format!("Scaled from {from} to {to}. {reason}"),
    });
    events
}

/// The Kubernetes Event about a resource that failed its level.
pub(super) fn failed(about: ObjectReference, direction: Option<Direction>, why: &str) -> Notice {
    let (event, action) = match direction {
        Some(Direction::Up) => ("ScaleUpFailed", "ScaleUp"),
        Some(Direction::Release) => ("ReleaseFailed", "Release"),
        Some(Direction::Down) | None => ("ScaleDownFailed", "ScaleDown"),
    };
    Notice {
        about,
        warning: true,
        reason: event,
        action,
        note: why.to_owned(),
    }
}

/// The Kubernetes Event about an annotation ignore-scaling that is neither true nor false.
pub(super) fn invalid_ignore_scaling(about: ObjectReference, warning: &str) -> Notice {
    Notice {
        about,
        warning: true,
        reason: "IgnoreScalingInvalid",
        action: "ReadIgnoreScaling",
        note: format!("{}.", warning.replacen("its", "Its", 1)),
    }
}
