//! States for the tests of rendering.

use jiff::Timestamp;
use prost_types::Duration;
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::scaling::v1 as scaling;

use super::Frame;
use crate::render::Format;

/// 2026-11-23T00:40:00Z.
pub(crate) const NOW: i64 = 1_795_394_400;

/// A pipe at [`NOW`].
pub(crate) fn pipe() -> Frame {
    Frame::plain(Timestamp::from_second(NOW).unwrap())
}

/// The same, for a table with more columns.
pub(crate) fn wide() -> Frame {
    Frame {
        format: Format::Wide,
        ..pipe()
    }
}

/// A time before [`NOW`].
pub(crate) fn ago(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp {
        seconds: NOW - seconds,
        nanos: 0,
    })
}

pub(crate) fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

pub(crate) fn verdict(shoot: &str, outcome: probe::Outcome) -> probe::Verdict {
    probe::Verdict {
        shoot: shoot.to_owned(),
        outcome: outcome.into(),
        message: "A sentence.".to_owned(),
        observer: "lease-probe-0".to_owned(),
        observe_time: ago(1),
        outcome_change_time: ago(130),
        expire_time: ago(-12),
        age: seconds(1),
        valid_for: seconds(12),
        evidence: Some(probe::Evidence {
            nodes: Some(6),
            leases: 7,
            candidates: 6,
            expired: 6,
            expired_fraction: Some(1.0),
            threshold: 0.6,
            expiry_age: seconds(32),
            excluded: vec![probe::ExclusionCount {
                reason: probe::Exclusion::NoMachine.into(),
                leases: 1,
            }],
            zones: vec![zone("a", 3, 3), zone("b", 3, 3)],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn zone(zone: &str, candidates: u32, expired: u32) -> probe::ZoneEvidence {
    probe::ZoneEvidence {
        zone: zone.to_owned(),
        candidates,
        expired,
    }
}

pub(crate) fn resource(name: &str, level: i32, state: scaling::ResourceState) -> scaling::ResourceScaling {
    scaling::ResourceScaling {
        resource: Some(scaling::ResourceRef {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: name.to_owned(),
        }),
        level: Some(level),
        state: state.into(),
        spec_replicas: Some(0),
        ready_replicas: Some(1),
        recorded_replicas: Some(1),
        target_replicas: Some(0),
        attempts: 1,
        message: "It has 1 ready replica.".to_owned(),
    }
}

/// A shoot that is protected and has nothing to do.
pub(crate) fn settled(shoot: &str) -> scaling::ShootScaling {
    scaling::ShootScaling {
        direction: scaling::Direction::Up.into(),
        state: scaling::FlowState::Settled.into(),
        mode: scaling::Mode::Protect.into(),
        level: None,
        meltdown_protection_active: false,
        ..scaling_down(shoot)
    }
}

/// A shoot whose second level runs down.
pub(crate) fn scaling_down(shoot: &str) -> scaling::ShootScaling {
    scaling::ShootScaling {
        shoot: shoot.to_owned(),
        direction: scaling::Direction::Down.into(),
        reason: "The nodes are cut off.".to_owned(),
        state: scaling::FlowState::Running.into(),
        level: Some(1),
        resources: vec![
            resource("kube-controller-manager", 1, scaling::ResourceState::Waiting),
            resource("machine-controller-manager", 0, scaling::ResourceState::Reached),
        ],
        direction_change_time: ago(129),
        replica: "scaling-coordinator-0".to_owned(),
        meltdown_protection_active: true,
        ..Default::default()
    }
}
