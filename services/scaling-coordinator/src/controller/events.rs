//! Reports writes as log lines and Kubernetes Events.

use k8s_openapi::api::core::v1::ObjectReference;
use watchdog_api::names::{CLUSTER_GROUP, V1ALPHA1};
use watchdog_kube::events::Notice;

use crate::domain::Direction;
use crate::domain::flow::{Action, ActionKind, ActionOutcome};
use crate::domain::next_step::ResourceWrite;

/// The span of a request: every line about it names what was done to which shoot.
pub(super) fn span(shoot: &str, action: &Action) -> tracing::Span {
    let (resource, direction) = (&action.reference, action.direction.as_str());
    // At the level of errors, so that no filter takes the fields away from a line that it lets pass.
    match &action.kind {
        ActionKind::Read => tracing::error_span!("read", shoot, %resource, direction),
        ActionKind::Write(write) => {
            tracing::error_span!("write", shoot, %resource, direction, what = %write)
        }
    }
}

/// Logs the outcome of a request, in its span.
pub(super) fn ended(kind: &ActionKind, outcome: &ActionOutcome) {
    if *kind == ActionKind::Read {
        if let Some(error) = outcome.error() {
            tracing::warn!(error, "a read of a resource failed; reading it again later");
        }
        return;
    }
    match outcome {
        ActionOutcome::Done => tracing::info!("a write was applied"),
        ActionOutcome::KeptBack => {
            tracing::info!("a write was not sent because the mode is observe; it would have been sent now");
        }
        ActionOutcome::Conflict => {
            tracing::info!("a write met a newer version of its resource; deciding again");
        }
        ActionOutcome::Cancelled { why } => {
            tracing::info!(why, "a write was cancelled because it is no longer allowed");
        }
        ActionOutcome::Refused { why, .. } | ActionOutcome::Unknown { why, .. } => {
            let result = outcome.write_result().as_str();
            tracing::warn!(result, error = why, "a write failed");
        }
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

/// The Kubernetes Event about a write that mode observe has kept back.
pub(super) fn kept_back(about: ObjectReference, write: &ResourceWrite, reason: &str) -> Notice {
    Notice {
        about,
        warning: false,
        reason: "WriteKeptBack",
        action: "KeptBack",
        note: format!("Would {write}, but the mode is observe. {reason}"),
    }
}

/// The Kubernetes Event about a malformed annotation of a Shoot. The Shoot itself is in the garden.
pub(super) fn malformed_policy(shoot: &str, warning: &str) -> Notice {
    let about = ObjectReference {
        api_version: Some(format!("{CLUSTER_GROUP}/{V1ALPHA1}")),
        kind: Some("Cluster".to_owned()),
        name: Some(shoot.to_owned()),
        // A Cluster has no namespace; its Events are where people look for those of the shoot.
        namespace: Some(shoot.to_owned()),
        ..ObjectReference::default()
    };
    Notice {
        about,
        warning: true,
        reason: "ShootAnnotationMalformed",
        action: "ReadShootAnnotation",
        note: warning.to_owned(),
    }
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
