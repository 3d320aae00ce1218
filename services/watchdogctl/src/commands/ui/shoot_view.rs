//! All about one shoot, as the page shows it. Pure: the clocks are arguments.

use serde_json::{Value, json};
use watchdog_client::wire::micros;
use watchdog_proto::probe::v1::{Evidence, Outcome};
use watchdog_proto::scaling::v1::{Direction, Incident, ResourceScaling, ShootScaling};

use super::cell::CellState;
use super::model::{ClockReading, KnownVerdict, ShootRecord};
use crate::render::{shoot, text};

/// The message about a shoot. Times are milliseconds of Unix time, durations are milliseconds.
pub(super) fn json(
    name: &str,
    record: &ShootRecord,
    state: Option<CellState>,
    has_current_scaling: bool,
    now: &ClockReading,
) -> Value {
    let scaling = record.scaling.as_ref();
    let incidents = scaling.map(|scaling| scaling.incident.iter().chain(&scaling.last_incident));
    let incidents: Vec<Value> = incidents.into_iter().flatten().map(incident).collect();
    json!({
        "name": name,
        "at": now.unix_millis(),
        "state": state,
        "verdict": record.verdict.as_ref().map(|known| verdict(known, now)),
        "samples": record.samples,
        "scaling": scaling.map(|scaling| scaling_json(scaling, has_current_scaling)),
        "incidents": incidents,
    })
}

/// A time that was received.
pub(super) fn unix_millis(sent: Option<&prost_types::Timestamp>) -> Option<i64> {
    text::timestamp(sent).map(jiff::Timestamp::as_millisecond)
}

fn duration_millis(sent: Option<&prost_types::Duration>) -> Option<i64> {
    sent.map(|sent| micros(Some(sent)) / 1_000)
}

fn verdict(known: &KnownVerdict, now: &ClockReading) -> Value {
    let (verdict, validity) = (&known.verdict, known.validity);
    let outcome = match verdict.outcome() {
        Outcome::Skipped => format!("SKIPPED {}", text::skip_reason(verdict.skip_reason())),
        outcome => text::outcome(outcome).to_owned(),
    };
    let left = validity.valid_until.saturating_duration_since(now.instant);
    let over = now.instant.saturating_duration_since(validity.valid_until);
    let observed = now.instant.saturating_duration_since(validity.observed);
    json!({
        "outcome": outcome,
        "message": verdict.message,
        "since": unix_millis(verdict.outcome_change_time.as_ref()),
        "observedMillisAgo": whole_millis(observed),
        // Negative when it is over.
        "validForMillis": whole_millis(left) - whole_millis(over),
        "observer": verdict.observer,
        "rule": shoot::rule(verdict),
        "evidence": verdict.evidence.as_ref().map(evidence),
    })
}

fn whole_millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

fn evidence(evidence: &Evidence) -> Value {
    let excluded = evidence.excluded.iter();
    let excluded: Vec<String> = excluded
        .map(|count| format!("{} {}", count.leases, text::exclusion(count.reason())))
        .collect();
    json!({
        "nodes": evidence.nodes,
        "leases": evidence.leases,
        "candidates": evidence.candidates,
        "expired": evidence.expired,
        "unconfirmed": evidence.unconfirmed,
        "fraction": evidence.expired_fraction,
        "threshold": evidence.threshold,
        "expiryAgeMillis": duration_millis(evidence.expiry_age.as_ref()),
        "newestExpiredMillis": duration_millis(evidence.newest_expired_renewal_age.as_ref()),
        "largestSkewMillis": duration_millis(evidence.largest_skew.as_ref()),
        "excluded": excluded,
    })
}

fn scaling_json(scaling: &ShootScaling, is_current: bool) -> Value {
    let held_by = match scaling.direction() {
        Direction::Hold => Some(text::hold_reason(scaling.hold_reason())),
        _ => None,
    };
    let mut resources: Vec<&ResourceScaling> = scaling.resources.iter().collect();
    resources.sort_by_key(|resource| resource.level);
    let resources: Vec<Value> = resources
        .into_iter()
        .map(|resource| {
            json!({
                "name": text::resource(resource.resource.as_ref()),
                "level": resource.level,
                "isNow": scaling.level.is_some() && resource.level == scaling.level,
                "state": text::resource_state(resource.state()),
                "replicas": resource.spec_replicas,
                "ready": resource.ready_replicas,
                "recorded": resource.recorded_replicas,
                "target": resource.target_replicas,
                "message": resource.message,
            })
        })
        .collect();
    json!({
        "isCurrent": is_current,
        "direction": text::direction(scaling.direction()),
        "holdReason": held_by,
        "since": unix_millis(scaling.direction_change_time.as_ref()),
        "state": text::flow_state(scaling.state()),
        "level": scaling.level,
        "reason": scaling.reason,
        "mode": text::mode(scaling.mode()),
        "modeSource": text::mode_source(scaling),
        "modeUntil": unix_millis(scaling.mode_expire_time.as_ref()),
        "heldDown": scaling.meltdown_protection_active,
        "retryAt": unix_millis(scaling.retry_time.as_ref()),
        "replica": scaling.replica,
        "resources": resources,
    })
}

/// An incident: what happened when, and for how long each dependant was down.
fn incident(incident: &Incident) -> Value {
    let started = unix_millis(incident.start_time.as_ref());
    let mut moments: Vec<(i64, String)> = Vec::new();
    if let Some(age) = duration_millis(incident.last_renewal_to_verdict.as_ref()) {
        moments.push((-age, "last renewal".to_owned()));
    }
    moments.push((
        0,
        match text::outcome(incident.outcome()) {
            "UNSPECIFIED" => "the coordinator became the leader, or another writer scaled".to_owned(),
            outcome => format!("verdict {outcome}"),
        },
    ));
    // In the order of the first time.
    let mut lanes: Vec<(String, Option<i64>, Option<i64>)> = Vec::new();
    for times in &incident.scale_times {
        let name = text::resource(times.resource.as_ref());
        let (verb, is_down) = match times.direction() {
            Direction::Down => ("down", true),
            _ => ("up", false),
        };
        if let Some(other) = duration_millis(times.other_scaled_after.as_ref()) {
            moments.push((other, format!("{name} scaled {verb} by {}", times.other)));
        }
        let Some(own) = duration_millis(times.scaled_after.as_ref()) else {
            continue;
        };
        let done = if incident.in_mode_observe {
            "would have been scaled"
        } else {
            "scaled"
        };
        moments.push((own, format!("{name} {done} {verb}")));
        if !lanes.iter().any(|(known, ..)| *known == name) {
            lanes.push((name.clone(), None, None));
        }
        for (_, down, up) in lanes.iter_mut().filter(|(known, ..)| *known == name) {
            *(if is_down { down } else { up }) = Some(own);
        }
    }
    let healthy = duration_millis(incident.verdict_to_healthy.as_ref());
    moments.extend(healthy.map(|at| (at, "healthy".to_owned())));
    let restored = duration_millis(incident.verdict_to_restored.as_ref());
    moments.extend(restored.map(|at| (at, "everything restored".to_owned())));
    moments.sort_by_key(|(at, _)| *at);
    let moments: Vec<Value> = moments
        .into_iter()
        .map(|(at, what)| json!({ "after": at, "what": what }))
        .collect();
    let lanes: Vec<Value> = lanes
        .into_iter()
        .map(|(name, down, up)| json!({ "name": name, "down": down, "up": up }))
        .collect();
    json!({
        "started": started,
        "healthy": healthy,
        "restored": restored,
        "isObserved": incident.in_mode_observe,
        "reason": incident.reason,
        "lastError": incident.last_error,
        "scaledDown": incident.scaled_down,
        "scaledUp": incident.scaled_up,
        "failedWrites": incident.failed_writes,
        "moments": moments,
        "lanes": lanes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;
    use watchdog_proto::probe::v1::Verdict;
    use watchdog_proto::scaling::v1::{Mode, ScaleTimes};

    use super::*;
    use crate::render::testing;

    fn now(instant: Instant) -> ClockReading {
        ClockReading {
            instant,
            wall: testing::pipe().now,
        }
    }

    fn millis(millis: i64) -> prost_types::Duration {
        prost_types::Duration {
            seconds: millis / 1_000,
            nanos: i32::try_from(millis % 1_000).unwrap() * 1_000_000,
        }
    }

    fn times(name: &str, direction: Direction, own: Option<i64>, other: Option<i64>) -> ScaleTimes {
        ScaleTimes {
            resource: testing::resource(name, 0, Default::default()).resource,
            direction: direction.into(),
            scaled_after: own.map(millis),
            other_scaled_after: other.map(millis),
            other: other.map(|_| "gardenlet".to_owned()).unwrap_or_default(),
        }
    }

    #[test]
    fn a_verdict_shows_its_evidence_and_how_long_it_is_valid() {
        let sent = Instant::now();
        let known = KnownVerdict::new(testing::verdict("a", Outcome::LeasesExpired), sent);
        for (seconds, valid_for) in [(2, 10_000), (15, -3_000)] {
            let shown = verdict(&known, &now(sent + Duration::from_secs(seconds)));
            assert_eq!(shown["validForMillis"], valid_for);
            assert_eq!(shown["observedMillisAgo"], (seconds + 1) * 1_000);
            assert_eq!(shown["since"], (testing::NOW - 130) * 1_000);
            assert_eq!(shown["evidence"]["expired"], 6);
            assert_eq!(shown["evidence"]["expiryAgeMillis"], 32_000);
            assert_eq!(shown["evidence"]["excluded"][0], "1 NO_MACHINE");
        }
        let skipped = Verdict {
            skip_reason: watchdog_proto::probe::v1::SkipReason::Hibernating.into(),
            ..testing::verdict("a", Outcome::Skipped)
        };
        let shown = verdict(&KnownVerdict::new(skipped, sent), &now(sent));
        assert_eq!(shown["outcome"], "SKIPPED HIBERNATING");
    }

    #[test]
    fn dependants_are_in_the_order_of_their_levels() {
        let shown = scaling_json(&testing::scaling_down("a"), true);
        let resources = shown["resources"].as_array().unwrap();
        let order: Vec<_> = resources
            .iter()
            .map(|one| (one["level"].as_i64().unwrap(), one["isNow"].as_bool().unwrap()))
            .collect();
        assert_eq!(order, [(0, false), (1, true)]);
        assert_eq!(resources[1]["name"], "Deployment/kube-controller-manager");
        assert_eq!(
            (&shown["direction"], &shown["heldDown"]),
            (&"down".into(), &true.into())
        );
        let held = ShootScaling {
            direction: Direction::Hold.into(),
            hold_reason: watchdog_proto::scaling::v1::HoldReason::Expired.into(),
            mode: Mode::Off.into(),
            ..testing::scaling_down("a")
        };
        let shown = scaling_json(&held, false);
        assert_eq!(
            (&shown["holdReason"], &shown["mode"]),
            (&"EXPIRED".into(), &"off".into())
        );
    }

    #[test]
    fn an_incident_has_its_moments_in_order_and_a_lane_for_each_dependant() {
        let ended = Incident {
            outcome: Outcome::LeasesExpired.into(),
            start_time: testing::ago(400),
            last_renewal_to_verdict: testing::seconds(32),
            verdict_to_healthy: testing::seconds(300),
            verdict_to_restored: testing::seconds(312),
            scale_times: vec![
                times("kcm", Direction::Down, Some(250), None),
                times("mcm", Direction::Down, Some(500), None),
                times("kcm", Direction::Up, Some(301_000), None),
            ],
            ..Default::default()
        };
        let shown = incident(&ended);
        let moments = shown["moments"].as_array().unwrap().iter();
        let moments: Vec<_> = moments
            .map(|one| (one["after"].as_i64().unwrap(), one["what"].as_str().unwrap()))
            .collect();
        let expected = [
            (-32_000, "last renewal"),
            (0, "verdict LEASES_EXPIRED"),
            (250, "Deployment/kcm scaled down"),
            (500, "Deployment/mcm scaled down"),
            (300_000, "healthy"),
            (301_000, "Deployment/kcm scaled up"),
            (312_000, "everything restored"),
        ];
        assert_eq!(moments, expected);
        let lanes = serde_json::json!([
            { "name": "Deployment/kcm", "down": 250, "up": 301_000 },
            { "name": "Deployment/mcm", "down": 500, "up": null },
        ]);
        assert_eq!(shown["lanes"], lanes);
    }

    #[test]
    fn an_incident_in_mode_observe_shows_who_scaled() {
        let observed = Incident {
            in_mode_observe: true,
            scale_times: vec![times("kcm", Direction::Down, Some(0), Some(-2_000))],
            ..Default::default()
        };
        let shown = incident(&observed);
        assert_eq!(
            shown["moments"][0]["what"],
            "Deployment/kcm scaled down by gardenlet"
        );
        assert_eq!(
            shown["moments"][2]["what"],
            "Deployment/kcm would have been scaled down"
        );
        assert_eq!(shown["isObserved"], true);
    }

    #[test]
    fn a_shoot_of_which_nothing_is_known_is_no_error() {
        let shown = json("a", &ShootRecord::default(), None, false, &now(Instant::now()));
        assert_eq!(
            (&shown["verdict"], &shown["scaling"]),
            (&Value::Null, &Value::Null)
        );
    }
}
