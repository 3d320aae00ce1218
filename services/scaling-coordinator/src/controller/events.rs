//! Reports writes as log lines and Kubernetes Events.

use k8s_openapi::api::core::v1::ObjectReference;
use watchdog_kube::events::Notice;

use super::write_counts;
use crate::domain::Direction;
use crate::domain::flow::{Action, Outcome};
use crate::domain::next_step::Write;

/// A write in words.
pub(super) fn what(write: &Write) -> String {
    match write {
        Write::Record { replicas } => format!("record {replicas} replicas"),
        Write::Scale {
            from,
            to,
            record: false,
            ..
        } => format!("scale from {from} to {to}"),
        Write::Scale { from, to, .. } => format!("record {from} replicas and scale to {to}"),
        Write::CleanUp => "remove meltdown-protection-active".to_owned(),
    }
}

/// Logs what became of a write.
pub(super) fn written(shoot: &str, action: &Action, write: &Write, outcome: &Outcome) {
    let resource = &action.reference;
    let (direction, result) = (action.direction.as_str(), write_counts::result(outcome));
    let what = what(write);
    match outcome {
        Outcome::Done => tracing::info!(shoot, %resource, direction, what, "written"),
        Outcome::Conflict => {
            tracing::info!(shoot, %resource, direction, what, "somebody else wrote in between")
        }
        Outcome::Cancelled => {
            tracing::info!(shoot, %resource, direction, what, "not written: not allowed any more")
        }
        Outcome::Refused { why, .. } | Outcome::Unknown { why, .. } => {
            tracing::warn!(shoot, %resource, direction, what, result, error = why, "a write failed");
        }
    }
}

/// Logs why a read failed. It is made again.
pub(super) fn read(shoot: &str, action: &Action, outcome: &Outcome) {
    let (resource, direction) = (&action.reference, action.direction.as_str());
    match outcome {
        Outcome::Refused { why, .. } | Outcome::Unknown { why, .. } => {
            tracing::warn!(shoot, %resource, direction, error = why, "reading a resource failed, reading it again later");
        }
        Outcome::Done | Outcome::Conflict | Outcome::Cancelled => {}
    }
}

/// The Kubernetes Events about an applied write.
pub(super) fn events(about: ObjectReference, action: &Action, write: &Write, reason: &str) -> Vec<Notice> {
    let (from, to, unreadable) = match write {
        Write::Scale {
            from, to, unreadable, ..
        } => (from, to, unreadable),
        Write::CleanUp if action.direction == Direction::Release => {
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
        Write::Record { .. } | Write::CleanUp => return Vec::new(),
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
