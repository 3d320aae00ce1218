//! The incidents of a shoot: the last one and the one that runs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
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

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IncidentMoment {
    /// Seconds since the start of the incident.
    pub(crate) after: f64,
    pub(crate) what: String,
    /// The program or the writer.
    pub(crate) who: String,
}

/// The damage of an incident without the watchdog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prevention {
    /// Nodes that were spared; none if their number is not known.
    pub(crate) nodes: Option<u32>,
    /// One sentence for people.
    pub(crate) text: String,
}

/// The node monitor grace period of the shoot.
pub(crate) fn grace(incident: &Incident) -> Duration {
    let reported = incident.node_monitor_grace_period.as_ref();
    reported.map_or(DEFAULT_GRACE, |grace| forward(Some(grace)))
}

/// The time that has passed in an incident: until its end, or until now.
pub(crate) fn length(incident: &Incident, now: Timestamp) -> Duration {
    match &incident.verdict_to_restored {
        Some(took) => forward(Some(took)),
        None => since_start(incident, now),
    }
}

fn since_start(incident: &Incident, now: Timestamp) -> Duration {
    let started = text::timestamp(incident.start_time.as_ref());
    let passed = started.map(|started| now.duration_since(started));
    passed
        .and_then(|passed| Duration::try_from(passed).ok())
        .unwrap_or_default()
}

/// Says what an incident would have cost: the nodes that kube-controller-manager would have marked Unknown.
pub(crate) fn prevention(incident: &Incident, now: Timestamp) -> Prevention {
    let grace = grace(incident);
    let none = |text: String| Prevention { nodes: Some(0), text };
    let Some(before) = incident.last_renewal_to_verdict.as_ref() else {
        return Prevention {
            nodes: None,
            text: "unknown: no lease had expired when it began".to_owned(),
        };
    };
    let before = forward(Some(before));
    let silent = match &incident.verdict_to_healthy {
        Some(took) => before + forward(Some(took)),
        None => before + since_start(incident, now),
    };
    if silent <= grace {
        let (silent, grace) = (text::duration(silent), text::duration(grace));
        let nothing = if incident.verdict_to_healthy.is_some() {
            "nothing"
        } else {
            "nothing yet"
        };
        return none(format!(
            "{nothing}: the leases were not renewed for {silent}, and kube-controller-manager waits {grace}"
        ));
    }
    let stops = incident.scale_times.iter().filter(|times| {
        let name = times.resource.as_ref().map(|resource| resource.name.as_str());
        times.direction() == Direction::Down && name == Some(KUBE_CONTROLLER_MANAGER)
    });
    let stopped = stops.filter_map(our_seconds).reduce(f64::min);
    let marks_after = grace.saturating_sub(before);
    match stopped {
        None => return none("nothing: kube-controller-manager was not scaled down".to_owned()),
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
pub(crate) fn stages(incident: &Incident) -> Vec<(&'static str, Duration)> {
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
pub(crate) fn peak(incident: &Incident) -> Option<String> {
    let share = text::percent(incident.peak_expired_fraction?);
    let zones: Vec<String> = incident
        .zones
        .iter()
        .map(|zone| {
            let name = if zone.zone.is_empty() {
                "(no label)"
            } else {
                &zone.zone
            };
            format!("{name} {}/{}", zone.expired, zone.candidates)
        })
        .collect();
    let zones = if zones.is_empty() {
        String::new()
    } else {
        format!(": {}", zones.join(", "))
    };
    Some(format!("{share} of the eligible leases expired{zones}"))
}

/// `2 down, 1 up, 0 writes failed`, in mode observe with the comparison.
pub(crate) fn counts(incident: &Incident) -> String {
    let writes = if incident.failed_writes == 1 {
        "write"
    } else {
        "writes"
    };
    format!(
        "{} down, {} up, {} {writes} failed{}",
        incident.scaled_down,
        incident.scaled_up,
        incident.failed_writes,
        comparison(incident)
    )
}

fn comparison(incident: &Incident) -> String {
    if !incident.in_mode_observe {
        return String::new();
    }
    let lead = seconds(incident.scale_down_lead.as_ref());
    let lead = lead.map_or_else(
        || "no other writer to compare with".to_owned(),
        |lead| format!("lead {lead:.1} s"),
    );
    format!("; mode observe, {lead}")
}

/// `ended after 5m12s`, or `not ended`.
pub(crate) fn state(incident: &Incident) -> String {
    match &incident.verdict_to_restored {
        Some(took) => format!("ended after {}", text::duration(forward(Some(took)))),
        None => "not ended".to_owned(),
    }
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

/// Seconds from the start until this program scaled, if it did.
pub(crate) fn our_seconds(times: &ScaleTimes) -> Option<f64> {
    seconds(times.scaled_after.as_ref())
}

/// Seconds from the start until another writer scaled, if one did.
fn other_seconds(times: &ScaleTimes) -> Option<f64> {
    seconds(times.other_scaled_after.as_ref())
}

/// All that happened, the earliest first. `leader` is the replica that reports the incident.
pub(crate) fn moments(incident: &Incident, leader: &str) -> Vec<IncidentMoment> {
    let moment = |after: f64, what: String, who: &str| IncidentMoment {
        after,
        what,
        who: who.to_owned(),
    };
    let what = match &incident.last_renewal_to_verdict {
        Some(age) => format!(
            "{}, {} after the last renewal",
            outcome(incident),
            text::duration(forward(Some(age)))
        ),
        None => outcome(incident),
    };
    let mut moments = vec![moment(0.0, what, "lease-probe")];
    for times in &incident.scale_times {
        let resource = text::resource(times.resource.as_ref());
        let way = if times.direction() == Direction::Down {
            "down"
        } else {
            "up"
        };
        let ours = if incident.in_mode_observe {
            "would have been scaled"
        } else {
            "scaled"
        };
        let at = our_seconds(times);
        moments.extend(at.map(|at| moment(at, format!("{resource} {ours} {way}"), leader)));
        let at = other_seconds(times);
        moments.extend(at.map(|at| moment(at, format!("{resource} scaled {way}"), &times.other)));
    }
    let healthy = seconds(incident.verdict_to_healthy.as_ref());
    moments.extend(healthy.map(|after| moment(after, "healthy".to_owned(), "lease-probe")));
    let restored = seconds(incident.verdict_to_restored.as_ref());
    moments.extend(restored.map(|after| moment(after, "everything restored".to_owned(), leader)));
    moments.sort_by(|a, b| a.after.total_cmp(&b.after));
    moments
}

/// The time of a moment, if the start is known.
pub(crate) fn at(incident: &Incident, after: f64) -> Option<Timestamp> {
    let passed = SignedDuration::try_from_secs_f64(after).ok()?;
    text::timestamp(incident.start_time.as_ref())?
        .checked_add(passed)
        .ok()
}

/// Seconds, which may be before the start.
pub(crate) fn duration_of(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    let duration = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
    format!("{sign}{}", text::duration(duration))
}

/// Both incidents, the older one first, each with what happened in it.
pub(crate) fn render(scaling: &ShootScaling, frame: &Frame) -> String {
    let incidents = scaling.last_incident.iter().chain(&scaling.incident);
    let shown: Vec<_> = incidents
        .map(|incident| incident_lines(incident, &scaling.replica, frame))
        .collect();
    if shown.is_empty() {
        return NOTHING.to_owned();
    }
    shown.join("\n")
}

/// There is no incident.
pub(crate) const NOTHING: &str =
    "Nothing has happened to this shoot since the coordinator became the leader.\n";

fn incident_lines(incident: &Incident, leader: &str, frame: &Frame) -> String {
    let style = match incident.verdict_to_restored {
        Some(_) => Style::Good,
        None => Style::Warn,
    };
    let title = frame.paint(style, "incident");
    let mut out = format!("{title} {}: {}\n", state(incident), counts(incident));
    let prevented = format!("prevented: {}", prevention(incident, frame.now).text);
    let sentences = [
        incident.reason.clone(),
        peak(incident).unwrap_or_default(),
        prevented,
    ];
    for sentence in sentences.iter().chain([&incident.last_error]) {
        if !sentence.is_empty() {
            out.push_str(&format!("  {sentence}\n"));
        }
    }
    let mut table = TextTable::new(["AFTER", "AT", "BY", "WHAT"]).indented(2);
    for moment in moments(incident, leader) {
        let at = at(incident, moment.after);
        table.row([
            duration_of(moment.after).into(),
            at.map_or_else(|| "-".to_owned(), |at| text::clock(at, frame.now))
                .into(),
            moment.who.into(),
            moment.what.into(),
        ]);
    }
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
        assert_eq!(render(&scaling, &testing::pipe()), expected);
        let none = render(&ShootScaling::default(), &testing::pipe());
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
        let shown = |ended: &Incident| incident_lines(ended, "coordinator-0", &testing::pipe());
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
            (&|incident| first(incident, None), Some(0), "was not scaled down"),
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
