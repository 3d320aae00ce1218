//! Reports writes as log lines and Kubernetes Events.

use k8s_openapi::api::core::v1::ObjectReference;
use watchdog_api::names::{CLUSTER_GROUP, V1ALPHA1};
use watchdog_kube::events::Notice;

use crate::domain::Direction;
use crate::domain::request::Request;
use crate::domain::request::RequestOutcome;
use crate::domain::resource_step::ResourceWrite;

/// The span of a write: every line about it names what was done to which shoot.
pub(super) fn span(shoot: &str, write: &Request) -> tracing::Span {
    let (resource, direction) = (&write.reference, write.direction.as_str());
    // At the level of errors, so that no filter takes the fields away from a line that it lets pass.
    tracing::error_span!("write", shoot, %resource, direction, what = %write)
}

/// Logs the outcome of a write, in its span.
pub(super) fn ended(outcome: &RequestOutcome) {
    match outcome {
        RequestOutcome::Done => tracing::info!("a write was applied"),
        RequestOutcome::KeptBack => {
            tracing::info!("a write was not sent because the mode is observe; it would have been sent now");
        }
        RequestOutcome::Conflict => {
            tracing::info!("write conflict; deciding again");
        }
        RequestOutcome::Cancelled { why } => {
            tracing::info!(why, "a write was cancelled because it is no longer allowed");
        }
        RequestOutcome::Refused { why, .. } | RequestOutcome::Unknown { why, .. } => {
            let result = outcome.as_str();
            tracing::warn!(result, error = why, "a write failed");
        }
    }
}

/// The Kubernetes Events about an applied write.
pub(super) fn events(about: ObjectReference, request: &Request, reason: &str) -> Vec<Notice> {
    let (from, to, unreadable) = match &request.write {
        Some((
            ResourceWrite::Scale {
                from, to, unreadable, ..
            },
            _,
        )) => (from, to, unreadable),
        Some((ResourceWrite::CleanUp, _)) if request.direction == Direction::Release => {
            let note = format!("Removed meltdown-protection-active; replicas not changed. {reason}");
            return vec![normal(about, "MeltdownProtectionReleased", "Released", note)];
        }
        _ => return Vec::new(),
    };
    let (event, action) = match request.direction {
        Direction::Down => ("MeltdownProtectionStarted", "ScaledDown"),
        Direction::Up | Direction::Release => ("MeltdownProtectionEnded", "ScaledUp"),
    };
    let unreadable = unreadable.as_ref().map(|text| {
        let note = format!("The recorded replica count {text:?} cannot be read; scaled to {to} instead.");
        warning(about.clone(), "RecordedReplicasUnreadable", "ScaledUp", note)
    });
    let scaled = normal(
        about,
        event,
        action,
        format!("Scaled from {from} to {to}. {reason}"),
    );
    unreadable.into_iter().chain([scaled]).collect()
}

/// The Kubernetes Event about a write that mode observe has kept back.
pub(super) fn kept_back(about: ObjectReference, write: &Request, reason: &str) -> Notice {
    let note = format!("Would {write}, but the mode is observe. {reason}");
    normal(about, "WriteKeptBack", "KeptBack", note)
}

/// The Kubernetes Event about an incident that has ended.
pub(super) fn incident_ended(shoot: &str, note: String) -> Notice {
    normal(cluster(shoot), "IncidentEnded", "Restored", note)
}

/// The Kubernetes Event about a malformed annotation of a Shoot. The Shoot itself is in the garden.
pub(super) fn malformed_policy(shoot: &str, note: String) -> Notice {
    warning(
        cluster(shoot),
        "ShootAnnotationMalformed",
        "ReadShootAnnotation",
        note,
    )
}

/// The Kubernetes Event about a resource that failed its level.
pub(super) fn failed(about: ObjectReference, direction: Direction, why: String) -> Notice {
    let (event, action) = match direction {
        Direction::Up => ("ScaleUpFailed", "ScaleUp"),
        Direction::Release => ("ReleaseFailed", "Release"),
        Direction::Down => ("ScaleDownFailed", "ScaleDown"),
    };
    warning(about, event, action, why)
}

/// The Kubernetes Event about a resource that is missing on the way down.
pub(super) fn missing(about: ObjectReference, why: String) -> Notice {
    warning(about, "DependantMissing", "ScaleDown", why)
}

/// The Kubernetes Event about an annotation ignore-scaling that is neither true nor false.
pub(super) fn invalid_ignore_scaling(about: ObjectReference, clause: &str) -> Notice {
    let note = format!("{}.", clause.replacen("its", "Its", 1));
    warning(about, "IgnoreScalingInvalid", "ReadIgnoreScaling", note)
}

/// The Cluster of a shoot, in whose namespace people look for Events about the shoot.
fn cluster(shoot: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{CLUSTER_GROUP}/{V1ALPHA1}")),
        kind: Some("Cluster".to_owned()),
        name: Some(shoot.to_owned()),
        // A Cluster has no namespace; its Events are where people look for those of the shoot.
        namespace: Some(shoot.to_owned()),
        ..ObjectReference::default()
    }
}

const fn normal(about: ObjectReference, reason: &'static str, action: &'static str, note: String) -> Notice {
    Notice {
        about,
        warning: false,
        reason,
        action,
        note,
    }
}

fn warning(about: ObjectReference, reason: &'static str, action: &'static str, note: String) -> Notice {
    Notice {
        warning: true,
        ..normal(about, reason, action, note)
    }
}
