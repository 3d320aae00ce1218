//! The incidents of a shoot: the last one and the one that runs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use watchdog_client::wire::{forward, micros};
use watchdog_proto::scaling::v1::{Direction, Incident, ScaleTimes, ShootScaling};

use super::table::{Style, TextTable};
use super::{Frame, text};

/// The dependant that marks nodes Unknown.
const KUBE_CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// How long machine-controller-manager waits by default before it replaces the machine of a node that is Unknown.
const MACHINE_HEALTH_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The grace period of kube-controller-manager by default, for a program that does not report it.
const DEFAULT_GRACE: Duration = Duration::from_secs(40);

/// There is no incident.
pub(crate) const NOTHING: &str =
    "Nothing has happened to this shoot since the coordinator became the leader.\n";

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct IncidentMoment {
    /// Seconds since the start of the incident.
    pub(crate) after: f64,
    pub(crate) what: String,
    /// The program or the writer.
    pub(crate) who: String,
}

/// A dependant that was at zero, in seconds since the start of the incident.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DownTime {
    pub(crate) name: String,
    pub(crate) from: f64,
    /// None while it is.
    pub(crate) to: Option<f64>,
}

/// The damage of an incident without the watchdog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Prevention {
    /// Nodes that were spared; none if their number is not known.
    pub(crate) nodes: Option<u32>,
    /// One sentence for people.
    pub(crate) text: String,
}

/// The incidents of a shoot with their names in the API, the one that runs first.
pub(crate) fn incidents(scaling: &ShootScaling) -> impl Iterator<Item = (&'static str, &Incident)> {
    let runs = scaling.incident.iter().map(|incident| ("incident", incident));
    let last = scaling.last_incident.iter();
    runs.chain(last.map(|incident| ("lastIncident", incident)))
}

/// The node monitor grace period of the shoot.
pub(crate) fn grace(incident: &Incident) -> Duration {
    let reported = incident.node_monitor_grace_period.as_ref();
    reported.map_or(DEFAULT_GRACE, |grace| forward(Some(grace)))
}

/// The time that has passed in an incident: until its end, or until now.
pub(crate) fn length(incident: &Incident, now: Timestamp) -> Duration {
    took_so_far(incident.verdict_to_restored.as_ref(), incident, now)
}

/// How long a stage took that begins with the incident, or takes until now.
fn took_so_far(took: Option<&prost_types::Duration>, incident: &Incident, now: Timestamp) -> Duration {
    if took.is_some() {
        return forward(took);
    }
    let started = text::timestamp(incident.start_time.as_ref());
    let passed = started.and_then(|started| Duration::try_from(now.duration_since(started)).ok());
    passed.unwrap_or_default()
}

/// Says what an incident would have cost: the nodes that kube-controller-manager would have marked Unknown.
pub(crate) fn prevention(incident: &Incident, now: Timestamp) -> Prevention {
    let none = |text: String| Prevention { nodes: Some(0), text };
    let Some(before) = incident.last_renewal_to_verdict.as_ref() else {
        return Prevention {
            nodes: None,
            text: "unknown: no lease had expired when it began".to_owned(),
        };
    };
    let (grace, before) = (grace(incident), forward(Some(before)));
    let healthy = incident.verdict_to_healthy.as_ref();
    let silent = before + took_so_far(healthy, incident, now);
    if silent <= grace {
        let yet = if healthy.is_some() { "" } else { " yet" };
        let (silent, grace) = (text::duration(silent), text::duration(grace));
        return none(format!(
            "nothing{yet}: the leases were not renewed for {silent}, and kube-controller-manager waits {grace}"
        ));
    }
    let downs = down_times(incident).into_iter();
    let stops = downs.filter(|down| down.name == KUBE_CONTROLLER_MANAGER);
    let marks_after = grace.saturating_sub(before);
    match stops.map(|down| down.from).reduce(f64::min) {
        // The record of a leader that found everything scaled down, or of a shoot that was not scaled.
        None => {
            return Prevention {
                nodes: None,
                text: "unknown: the record has no scale-down of kube-controller-manager by this leader"
                    .to_owned(),
            };
        }
        Some(stopped) if stopped > marks_after.as_secs_f64() => {
            return none(format!(
                "nothing: kube-controller-manager was scaled down {} after the verdict, and marks nodes Unknown after \
                 {}",
                duration_of(stopped),
                text::duration(marks_after)
            ));
        }
        Some(_) => {}
    }
    let nodes: u32 = incident.zones.iter().map(|zone| zone.expired).sum();
    let nodes = (nodes > 0).then_some(nodes);
    let shown = match (nodes, incident.peak_expired_fraction) {
        (Some(1), _) => "1 node".to_owned(),
        (Some(nodes), _) => format!("{nodes} nodes"),
        (None, Some(share)) => format!("{} of the nodes", text::percent(share)),
        (None, None) => "nodes".to_owned(),
    };
    let would = if incident.in_mode_observe {
        "nothing, because the mode was observe; in mode protect: "
    } else {
        ""
    };
    let machines = if silent > grace + MACHINE_HEALTH_TIMEOUT {
        ", and machine-controller-manager would have replaced their machines"
    } else {
        ""
    };
    Prevention {
        nodes: if incident.in_mode_observe { Some(0) } else { nodes },
        text: format!(
            "{would}{shown} that kube-controller-manager would have marked Unknown {} after the last renewal{machines}",
            text::duration(grace)
        ),
    }
}

/// Each stage, and how long it took.
fn stages(incident: &Incident) -> Vec<(&'static str, Duration)> {
    let span = |sent: &Option<prost_types::Duration>| sent.as_ref().map(|sent| forward(Some(sent)));
    let healthy = span(&incident.verdict_to_healthy);
    let restored = span(&incident.verdict_to_restored);
    let to_restored = healthy.zip(restored);
    [
        ("last renewal to verdict", span(&incident.last_renewal_to_verdict)),
        ("verdict to first write", span(&incident.verdict_to_first_write)),
        ("verdict to last write", span(&incident.verdict_to_last_write)),
        ("verdict to healthy", healthy),
        (
            "healthy to restored",
            to_restored.map(|(healthy, restored)| restored.saturating_sub(healthy)),
        ),
    ]
    .into_iter()
    .filter_map(|(stage, took)| Some((stage, took?)))
    .collect()
}

/// The share of expired leases at the peak, with its zones; none if no lease was eligible.
fn peak(incident: &Incident) -> Option<String> {
    let share = text::percent(incident.peak_expired_fraction?);
    let zones = incident.zones.iter();
    let zones: Vec<String> = zones
        .map(|zone| format!("{} {}/{}", text::zone(zone), zone.expired, zone.candidates))
        .collect();
    let colon = if zones.is_empty() { "" } else { ": " };
    Some(format!(
        "{share} of the eligible leases expired{colon}{}",
        zones.join(", ")
    ))
}

/// `2 down, 1 up, 0 writes failed`, in mode observe with the comparison.
fn counts(incident: &Incident) -> String {
    let failed = text::count(incident.failed_writes, "write", "writes");
    let comparison = match seconds(incident.scale_down_lead.as_ref()) {
        _ if !incident.in_mode_observe => String::new(),
        Some(lead) => format!("; mode observe, lead {lead:.1} s"),
        None => "; mode observe, no other writer to compare with".to_owned(),
    };
    format!(
        "{} down, {} up, {failed} failed{comparison}",
        incident.scaled_down, incident.scaled_up
    )
}

/// `ended after 5m12s`, or `not ended`.
pub(crate) fn state(incident: &Incident) -> String {
    match &incident.verdict_to_restored {
        Some(took) => format!("ended after {}", text::duration(forward(Some(took)))),
        None => "not ended".to_owned(),
    }
}

/// Its state and what was written.
pub(crate) fn summary(incident: &Incident) -> String {
    format!("{}: {}", state(incident), counts(incident))
}

/// The outcome that started it.
pub(crate) fn outcome(incident: &Incident) -> String {
    match text::outcome(incident.outcome()) {
        "UNSPECIFIED" => "the coordinator became the leader, or another writer scaled".to_owned(),
        outcome => outcome.to_owned(),
    }
}

/// A span as seconds, which may be negative.
pub(crate) fn seconds(sent: Option<&prost_types::Duration>) -> Option<f64> {
    sent.map(|sent| micros(Some(sent)) as f64 / 1e6)
}

/// Each dependant that this program scaled down or, in mode observe, would have.
pub(crate) fn down_times(incident: &Incident) -> Vec<DownTime> {
    let of = |times: &ScaleTimes| {
        let from = seconds(times.scaled_after.as_ref()).filter(|_| times.direction() == Direction::Down)?;
        let is_up =
            |other: &&ScaleTimes| other.direction() == Direction::Up && other.resource == times.resource;
        let up = incident.scale_times.iter().find(is_up);
        let name = times.resource.as_ref().map(|resource| resource.name.clone());
        Some(DownTime {
            name: name.unwrap_or_else(|| "?".to_owned()),
            from,
            to: up.and_then(|up| seconds(up.scaled_after.as_ref())),
        })
    };
    incident.scale_times.iter().filter_map(of).collect()
}

/// All that happened, the earliest first. `leader` is the replica that reports the incident.
pub(crate) fn moments(incident: &Incident, leader: &str) -> Vec<IncidentMoment> {
    let started = match &incident.last_renewal_to_verdict {
        Some(age) => {
            let age = text::duration(forward(Some(age)));
            format!("{}, {age} after the last renewal", outcome(incident))
        }
        None => outcome(incident),
    };
    let ours = if incident.in_mode_observe {
        "would have been scaled"
    } else {
        "scaled"
    };
    let mut found = vec![(Some(0.0), started, "lease-probe")];
    for times in &incident.scale_times {
        let resource = text::resource(times.resource.as_ref());
        let way = if times.direction() == Direction::Down {
            "down"
        } else {
            "up"
        };
        let (own, other) = (times.scaled_after.as_ref(), times.other_scaled_after.as_ref());
        found.push((seconds(own), format!("{resource} {ours} {way}"), leader));
        found.push((
            seconds(other),
            format!("{resource} scaled {way}"),
            times.other.as_str(),
        ));
    }
    let healthy = seconds(incident.verdict_to_healthy.as_ref());
    found.push((healthy, "healthy".to_owned(), "lease-probe"));
    let restored = seconds(incident.verdict_to_restored.as_ref());
    found.push((restored, "everything restored".to_owned(), leader));
    let known = found.into_iter().filter_map(|(after, what, who)| {
        Some(IncidentMoment {
            after: after?,
            what,
            who: who.to_owned(),
        })
    });
    let mut moments: Vec<IncidentMoment> = known.collect();
    moments.sort_by(|a, b| a.after.total_cmp(&b.after));
    moments
}

/// The time of a moment; `-` if the start is not known.
fn clock(incident: &Incident, moment: &IncidentMoment, now: Timestamp) -> String {
    let at = || {
        let passed = SignedDuration::try_from_secs_f64(moment.after).ok()?;
        text::timestamp(incident.start_time.as_ref())?
            .checked_add(passed)
            .ok()
    };
    at().map_or_else(|| "-".to_owned(), |at| text::clock(at, now))
}

/// Seconds, which may be before the start.
pub(crate) fn duration_of(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    let duration = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
    format!("{sign}{}", text::duration(duration))
}

/// Both incidents, the older one first, each with what happened in it.
pub(crate) fn lines(scaling: &ShootScaling, frame: &Frame) -> String {
    let mut shown: Vec<_> = incidents(scaling)
        .map(|(_, incident)| lines_of(incident, &scaling.replica, frame))
        .collect();
    if shown.is_empty() {
        return NOTHING.to_owned();
    }
    shown.reverse();
    shown.join("\n")
}

pub(crate) fn lines_of(incident: &Incident, leader: &str, frame: &Frame) -> String {
    let style = match incident.verdict_to_restored {
        Some(_) => Style::Good,
        None => Style::Warn,
    };
    let title = frame.paint(style, "incident");
    let mut out = format!("{title} {}\n", summary(incident));
    for sentence in [
        incident.reason.clone(),
        peak(incident).unwrap_or_default(),
        format!("prevented: {}", prevention(incident, frame.now).text),
        incident.last_error.clone(),
    ] {
        if !sentence.is_empty() {
            out.push_str(&format!("  {sentence}\n"));
        }
    }
    let table = TextTable::of(moments(incident, leader))
        .indented(2)
        .column("AFTER", |moment| duration_of(moment.after))
        .column("AT", |moment| clock(incident, moment, frame.now))
        .column("BY", |moment| moment.who.clone())
        .column("WHAT", |moment| moment.what.clone());
    out.push_str(&table.render(frame));
    let took: Vec<String> = stages(incident)
        .into_iter()
        .map(|(stage, took)| format!("{stage} {}", text::duration(took)))
        .collect();
    if !took.is_empty() {
        out.push_str(&format!("  {}\n", took.join(", ")));
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use watchdog_client::wire::signed;
    use watchdog_proto::probe::v1::{Outcome, ZoneEvidence};
    use watchdog_proto::scaling::v1::ResourceState;

    use super::*;
    use crate::render::testing;

    fn span(seconds: f64) -> prost_types::Duration {
        signed((seconds * 1e6) as i64)
    }

    fn times(name: &str, direction: Direction, ours: Option<f64>, other: Option<f64>) -> ScaleTimes {
        ScaleTimes {
            resource: testing::resource(name, 0, ResourceState::Waiting).resource,
            direction: direction.into(),
            scaled_after: ours.map(span),
            other_scaled_after: other.map(span),
            other: other
                .map(|_| "dependency-watchdog".to_owned())
                .unwrap_or_default(),
        }
    }

    pub(crate) fn ended() -> Incident {
        Incident {
            outcome: Outcome::LeasesExpired.into(),
            start_time: testing::ago(400),
            last_renewal_to_verdict: testing::seconds(32),
            verdict_to_healthy: testing::seconds(300),
            verdict_to_restored: testing::seconds(312),
            scaled_down: 1,
            scaled_up: 1,
            failed_writes: 1,
            peak_expired_fraction: Some(0.75),
            zones: vec![ZoneEvidence {
                zone: "a".to_owned(),
                candidates: 4,
                expired: 3,
            }],
            scale_times: vec![
                times(KUBE_CONTROLLER_MANAGER, Direction::Down, Some(0.25), None),
                times(KUBE_CONTROLLER_MANAGER, Direction::Up, Some(301.0), None),
            ],
            reason: "A sentence.".to_owned(),
            last_error: "forbidden".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn an_incident_is_shown_in_the_order_in_which_it_happened() {
        let runs = Incident {
            start_time: testing::ago(10),
            ..Default::default()
        };
        let scaling = ShootScaling {
            incident: Some(runs),
            last_incident: Some(ended()),
            replica: "coordinator-0".to_owned(),
            ..Default::default()
        };
        let expected = "\
incident ended after 5m12s: 1 down, 1 up, 1 write failed
  A sentence.
  75 % of the eligible leases expired: a 3/4
  prevented: 3 nodes that kube-controller-manager would have marked Unknown 40s after the last renewal
  forbidden
  AFTER  AT         BY             WHAT
  0s     00:33:20Z  lease-probe    LEASES_EXPIRED, 32s after the last renewal
  250ms  00:33:20Z  coordinator-0  Deployment/kube-controller-manager scaled down
  5m00s  00:38:20Z  lease-probe    healthy
  5m01s  00:38:21Z  coordinator-0  Deployment/kube-controller-manager scaled up
  5m12s  00:38:32Z  coordinator-0  everything restored
  last renewal to verdict 32s, verdict to healthy 5m00s, healthy to restored 12s

incident not ended: 0 down, 0 up, 0 writes failed
  prevented: unknown: no lease had expired when it began
  AFTER  AT         BY           WHAT
  0s     00:39:50Z  lease-probe  the coordinator became the leader, or another writer scaled
";
        assert_eq!(lines(&scaling, &testing::pipe()), expected);
        let none = lines(&ShootScaling::default(), &testing::pipe());
        assert_eq!(none, NOTHING);
    }

    #[test]
    fn an_incident_in_mode_observe_shows_who_was_first() {
        let mut ended = Incident {
            in_mode_observe: true,
            scale_times: vec![times(
                KUBE_CONTROLLER_MANAGER,
                Direction::Down,
                Some(0.0),
                Some(-2.0),
            )],
            scale_down_lead: Some(span(-2.04)),
            ..Default::default()
        };
        let shown = |ended: &Incident| lines_of(ended, "coordinator-0", &testing::pipe());
        let text = shown(&ended);
        assert!(text.contains("; mode observe, lead -2.0 s\n"), "{text}");
        let other =
            text.find("-2s    -   dependency-watchdog  Deployment/kube-controller-manager scaled down");
        let ours = text.find("Deployment/kube-controller-manager would have been scaled down");
        assert!(other.is_some() && other < ours, "{text}");
        ended.scale_down_lead = None;
        let alone = shown(&ended);
        assert!(
            alone.contains("; mode observe, no other writer to compare with\n"),
            "{alone}"
        );
    }

    #[test]
    fn only_what_would_have_happened_was_prevented() {
        let now = testing::pipe().now;
        let nodes = |change: &dyn Fn(&mut Incident)| {
            let mut incident = ended();
            change(&mut incident);
            prevention(&incident, now)
        };
        let first = |incident: &mut Incident, after: Option<f64>| {
            incident.scale_times[0].scaled_after = after.map(span)
        };
        for (change, count, part) in [
            (
                &(|_: &mut Incident| {}) as &dyn Fn(&mut Incident),
                Some(3),
                "3 nodes that",
            ),
            (
                &|incident| incident.verdict_to_healthy = testing::seconds(8),
                Some(0),
                "nothing: the leases were not renewed for 40s, and kube-controller-manager waits 40s",
            ),
            (
                &|incident| {
                    incident.verdict_to_healthy = None;
                    incident.start_time = testing::ago(5);
                },
                Some(0),
                "nothing yet: the leases were not renewed for 37s",
            ),
            (
                &|incident| incident.node_monitor_grace_period = testing::seconds(600),
                Some(0),
                "kube-controller-manager waits 10m00s",
            ),
            (
                &|incident| first(incident, None),
                None,
                "has no scale-down of kube-controller-manager",
            ),
            (
                &|incident| first(incident, Some(9.0)),
                Some(0),
                "scaled down 9s after the verdict, and marks nodes Unknown after 8s",
            ),
            (
                &|incident| incident.last_renewal_to_verdict = None,
                None,
                "no lease had expired",
            ),
            (&|incident| incident.zones.clear(), None, "75 % of the nodes that"),
            (
                &|incident| incident.in_mode_observe = true,
                Some(0),
                "nothing, because the mode was observe; in mode protect: 3 nodes",
            ),
            (
                &|incident| incident.verdict_to_healthy = testing::seconds(1_000),
                Some(3),
                "would have replaced their machines",
            ),
            (
                &|incident| {
                    incident.verdict_to_healthy = None;
                    incident.start_time = testing::ago(9);
                },
                Some(3),
                "3 nodes that",
            ),
        ] {
            let found = nodes(change);
            assert!(
                found.nodes == count && found.text.contains(part),
                "{part}: {found:?}"
            );
        }
    }
}
