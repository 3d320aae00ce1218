//! The incidents of a shoot: the last one and the one that runs.

use std::time::Duration;

use jiff::SignedDuration;
use watchdog_client::wire::{forward, micros};
use watchdog_proto::scaling::v1::{Direction, Incident, ShootScaling};

use super::table::{Cell, Style, TextTable};
use super::{Frame, text};

/// Both incidents, the older one first, each with what happened in it.
pub(crate) fn render(scaling: &ShootScaling, frame: &Frame) -> String {
    let incidents = scaling.last_incident.iter().chain(&scaling.incident);
    let shown: Vec<_> = incidents
        .map(|incident| incident_lines(incident, frame))
        .collect();
    if shown.is_empty() {
        return "Nothing has happened to this shoot since the coordinator became the leader.\n".to_owned();
    }
    shown.join("\n")
}

fn incident_lines(incident: &Incident, frame: &Frame) -> String {
    let (style, state) = match &incident.verdict_to_restored {
        Some(took) => (
            Style::Good,
            format!("ended after {}", text::duration(forward(Some(took)))),
        ),
        None => (Style::Warn, "not ended".to_owned()),
    };
    let writes = if incident.failed_writes == 1 {
        "write"
    } else {
        "writes"
    };
    let mut out = format!(
        "{} {}: {} down, {} up, {} {writes} failed{}\n",
        frame.paint(style, "incident"),
        state,
        incident.scaled_down,
        incident.scaled_up,
        incident.failed_writes,
        comparison(incident)
    );
    for sentence in [&incident.reason, &incident.last_error] {
        if !sentence.is_empty() {
            out.push_str(&format!("  {sentence}\n"));
        }
    }
    out.push_str(&moments(incident, frame).render(frame));
    out
}

fn comparison(incident: &Incident) -> String {
    if !incident.in_mode_observe {
        return String::new();
    }
    let lead = incident.scale_down_lead.as_ref().map_or_else(
        || "no other writer to compare with".to_owned(),
        |lead| format!("lead {:.1} s", micros(Some(lead)) as f64 / 1e6),
    );
    format!("; mode observe, {lead}")
}

/// One row for each thing that has happened, the earliest first.
fn moments(incident: &Incident, frame: &Frame) -> TextTable {
    let outcome = match text::outcome(incident.outcome()) {
        "UNSPECIFIED" => "the coordinator became the leader, or another writer scaled".to_owned(),
        outcome => match &incident.last_renewal_to_verdict {
            Some(age) => format!(
                "{outcome}, {} after the last renewal",
                text::duration(forward(Some(age)))
            ),
            None => outcome.to_owned(),
        },
    };
    let mut moments = vec![(0, outcome)];
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
        let scaled = times.scaled_after.as_ref();
        moments.extend(scaled.map(|after| (micros(Some(after)), format!("{resource} {ours} {way}"))));
        let others = times.other_scaled_after.as_ref();
        moments.extend(others.map(|after| {
            let what = format!("{resource} scaled {way} by {}", times.other);
            (micros(Some(after)), what)
        }));
    }
    let healthy = incident.verdict_to_healthy.as_ref();
    moments.extend(healthy.map(|after| (micros(Some(after)), "healthy".to_owned())));
    let restored = incident.verdict_to_restored.as_ref();
    moments.extend(restored.map(|after| (micros(Some(after)), "everything restored".to_owned())));
    moments.sort_by_key(|(after, _)| *after);

    let mut table = TextTable::new(["AFTER", "AT", "WHAT"]).indented(2);
    for (after, what) in moments {
        let started = text::timestamp(incident.start_time.as_ref());
        let passed = SignedDuration::from_micros(after);
        let at = started.and_then(|started| started.checked_add(passed).ok());
        let sign = if after < 0 { "-" } else { "" };
        let after = Duration::from_micros(after.unsigned_abs());
        let cells: [Cell; 3] = [
            format!("{sign}{}", text::duration(after)).into(),
            at.map_or_else(|| "-".to_owned(), |at| text::clock(at, frame.now))
                .into(),
            what.into(),
        ];
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use watchdog_client::wire::signed;
    use watchdog_proto::probe::v1::Outcome;
    use watchdog_proto::scaling::v1::{ResourceState, ScaleTimes};

    use super::*;
    use crate::render::testing;

    fn times(direction: Direction, ours: Option<i64>, other: Option<i64>) -> ScaleTimes {
        ScaleTimes {
            resource: testing::resource("kube-controller-manager", 0, ResourceState::Waiting).resource,
            direction: direction.into(),
            scaled_after: ours.map(signed),
            other_scaled_after: other.map(signed),
            other: other
                .map(|_| "dependency-watchdog".to_owned())
                .unwrap_or_default(),
        }
    }

    #[test]
    fn an_incident_is_shown_in_the_order_in_which_it_happened() {
        let ended = Incident {
            outcome: Outcome::LeasesExpired.into(),
            start_time: testing::ago(400),
            last_renewal_to_verdict: testing::seconds(32),
            verdict_to_healthy: testing::seconds(300),
            verdict_to_restored: testing::seconds(312),
            scaled_down: 1,
            scaled_up: 1,
            failed_writes: 1,
            scale_times: vec![
                times(Direction::Down, Some(250_000), None),
                times(Direction::Up, Some(301_000_000), None),
            ],
            reason: "A sentence.".to_owned(),
            last_error: "forbidden".to_owned(),
            ..Default::default()
        };
        let runs = Incident {
            start_time: testing::ago(10),
            ..Default::default()
        };
        let scaling = ShootScaling {
            incident: Some(runs),
            last_incident: Some(ended),
            ..Default::default()
        };
        let expected = "\
incident ended after 5m12s: 1 down, 1 up, 1 write failed
  A sentence.
  forbidden
  AFTER  AT         WHAT
  0s     00:33:20Z  LEASES_EXPIRED, 32s after the last renewal
  250ms  00:33:20Z  Deployment/kube-controller-manager scaled down
  5m00s  00:38:20Z  healthy
  5m01s  00:38:21Z  Deployment/kube-controller-manager scaled up
  5m12s  00:38:32Z  everything restored

incident not ended: 0 down, 0 up, 0 writes failed
  AFTER  AT         WHAT
  0s     00:39:50Z  the coordinator became the leader, or another writer scaled
";
        assert_eq!(render(&scaling, &testing::pipe()), expected);
        let none = render(&ShootScaling::default(), &testing::pipe());
        assert!(
            none.starts_with("Nothing has happened to this shoot since"),
            "{none}"
        );
    }

    #[test]
    fn an_incident_in_mode_observe_shows_who_was_first() {
        let mut ended = Incident {
            in_mode_observe: true,
            scale_times: vec![times(Direction::Down, Some(0), Some(-2_000_000))],
            scale_down_lead: Some(signed(-2_040_000)),
            ..Default::default()
        };
        let shown = incident_lines(&ended, &testing::pipe());
        assert!(shown.contains("; mode observe, lead -2.0 s\n"), "{shown}");
        let other =
            shown.find("-2s    -   Deployment/kube-controller-manager scaled down by dependency-watchdog");
        let ours = shown.find("0s     -   Deployment/kube-controller-manager would have been scaled down");
        assert!(other.is_some() && other < ours, "{shown}");
        ended.scale_down_lead = None;
        let alone = incident_lines(&ended, &testing::pipe());
        assert!(
            alone.contains("; mode observe, no other writer to compare with\n"),
            "{alone}"
        );
    }
}
