//! The history of a shoot.

use watchdog_proto::scaling::v1::shoot_event::Event;
use watchdog_proto::scaling::v1::{
    IncidentEnded, ModeChangeReason, ModeChanged, OtherWrote, ShootEvent, WriteEnded, WriteResult,
};

use super::table::{Cell, Style, TextTable};
use super::{Frame, text};

/// One row for each event, in the order given.
pub(crate) fn render(events: &[ShootEvent], frame: &Frame) -> String {
    if events.is_empty() {
        return "Nothing has happened to this shoot since the coordinator was started.\n".to_owned();
    }
    let mut table = TextTable::new(["AGO", "AT", "WHAT", "TOOK", "DETAILS", "MESSAGE"]);
    for event in events {
        let at = text::timestamp(event.at.as_ref());
        let ago = text::since(event.at.as_ref(), frame.now);
        let ago = ago.split(' ').next().unwrap_or_default().to_owned();
        let (what, took, details) = parts(event);
        table.row([
            ago.into(),
            at.map_or_else(|| "-".to_owned(), |at| text::clock(at, frame.now))
                .into(),
            what,
            took.into(),
            details.into(),
            event.message.as_str().into(),
        ]);
    }
    table.render(frame)
}

/// The event, how long it took, and the details of its kind.
fn parts(event: &ShootEvent) -> (Cell, String, String) {
    match &event.event {
        Some(Event::VerdictChanged(changed)) => (
            Cell::styled(super::status::outcome_style(changed.outcome()), "verdict"),
            text::sent_duration(changed.delay.as_ref()),
            format!(
                "{}, expired {}",
                change(
                    text::outcome(changed.previous_outcome()),
                    text::outcome(changed.outcome())
                ),
                text::share(changed.evidence.as_ref())
            ),
        ),
        Some(Event::DirectionChanged(changed)) => (
            "direction".into(),
            "-".to_owned(),
            change(
                &text::direction(changed.previous_direction()),
                &text::direction(changed.direction()),
            ),
        ),
        Some(Event::StepChanged(changed)) => (
            "step".into(),
            text::sent_duration(changed.previous_step_took.as_ref()),
            format!(
                "{} {}",
                text::resource(changed.resource.as_ref()),
                change(text::step(changed.previous_step()), text::step(changed.step()))
            ),
        ),
        Some(Event::WriteEnded(ended)) => (
            Cell::styled(write_style(ended.result()), "write"),
            text::sent_duration(ended.took.as_ref()),
            write(ended),
        ),
        Some(Event::OtherWrote(other)) => (
            Cell::styled(Style::Warn, "other wrote"),
            "-".to_owned(),
            other_write(other),
        ),
        Some(Event::ModeChanged(changed)) => (
            Cell::styled(Style::Warn, "mode"),
            "-".to_owned(),
            mode_change(changed),
        ),
        Some(Event::IncidentEnded(ended)) => (
            Cell::styled(Style::Good, "incident ended"),
            text::sent_duration(ended.verdict_to_restored.as_ref()),
            incident(ended),
        ),
        None => ("-".into(), "-".to_owned(), "-".to_owned()),
    }
}

fn write(ended: &WriteEnded) -> String {
    let resource = text::resource(ended.resource.as_ref());
    let result = text::bare(ended.result().as_str_name(), "WRITE_RESULT_");
    match ended.error.as_str() {
        "" => format!("{resource} {}: {result}", ended.write),
        error => format!("{resource} {}: {result} ({error})", ended.write),
    }
}

fn mode_change(changed: &ModeChanged) -> String {
    let modes = change(&text::mode(changed.previous_mode()), &text::mode(changed.mode()));
    let why = match changed.reason() {
        ModeChangeReason::Annotation => "annotation",
        ModeChangeReason::Ended => "the annotation's mode has ended",
        ModeChangeReason::Withdrawn => "annotation gone or malformed",
        ModeChangeReason::Unspecified => "unknown",
    };
    match text::timestamp(changed.mode_until.as_ref()) {
        Some(until) => format!("{modes} until {until}: {why}"),
        None => format!("{modes}: {why}"),
    }
}

fn other_write(other: &OtherWrote) -> String {
    let (from, to, writer) = (other.from_replicas, other.to_replicas, &other.writer);
    format!(
        "{} {from} -> {to} by {writer}",
        text::resource(other.resource.as_ref())
    )
}

/// From one state to the next; the first one has none before it.
fn change(before: &str, now: &str) -> String {
    if before.eq_ignore_ascii_case("unspecified") {
        now.to_owned()
    } else {
        format!("{before} -> {now}")
    }
}

const fn write_style(result: WriteResult) -> Style {
    match result {
        WriteResult::Applied => Style::Plain,
        WriteResult::Conflict | WriteResult::Cancelled | WriteResult::KeptBack => Style::Warn,
        _ => Style::Bad,
    }
}

fn incident(ended: &IncidentEnded) -> String {
    let comparison = if ended.in_mode_observe {
        let lead = ended.scale_down_lead_seconds;
        let lead = lead.map_or_else(
            || "no other writer to compare with".to_owned(),
            |lead| format!("lead {lead:.1} s"),
        );
        format!("; mode observe, {lead}")
    } else {
        String::new()
    };
    let writes = if ended.failed_writes == 1 {
        "write"
    } else {
        "writes"
    };
    format!(
        "{} after {}: last write down after {}, healthy after {}; {} down, {} up, {} {writes} failed{comparison}",
        text::outcome(ended.outcome()),
        text::sent_duration(ended.last_renewal_to_verdict.as_ref()),
        text::sent_duration(ended.verdict_to_last_write.as_ref()),
        text::sent_duration(ended.verdict_to_healthy.as_ref()),
        ended.scaled_down,
        ended.scaled_up,
        ended.failed_writes
    )
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::Outcome;
    use watchdog_proto::scaling::v1::{Direction, DirectionChanged, Mode, Step, StepChanged, VerdictChanged};

    use super::*;
    use crate::render::testing;

    #[test]
    fn the_first_state_has_none_before_it() {
        assert_eq!(change("UNSPECIFIED", "PENDING"), "PENDING");
        assert_eq!(change("up", "down"), "up -> down");
    }

    #[test]
    fn events_keep_their_order_and_show_what_took_how_long() {
        let verdict = VerdictChanged {
            previous_outcome: Outcome::Healthy.into(),
            outcome: Outcome::LeasesExpired.into(),
            evidence: testing::verdict("a", Outcome::LeasesExpired).evidence,
            delay: testing::seconds(0),
            ..Default::default()
        };
        let write = WriteEnded {
            resource: testing::resource("cluster-autoscaler", 0, Default::default()).resource,
            write: "scale to 0".to_owned(),
            result: WriteResult::Refused.into(),
            error: "forbidden".to_owned(),
            took: testing::seconds(2),
            ..Default::default()
        };
        let event = |seconds, event| ShootEvent {
            at: testing::ago(seconds),
            message: "A sentence.".to_owned(),
            event: Some(event),
            ..Default::default()
        };
        let events = [
            event(130, Event::VerdictChanged(verdict)),
            event(128, Event::WriteEnded(write)),
        ];
        let expected = "\
AGO    AT         WHAT     TOOK  DETAILS                                                           MESSAGE
2m10s  00:37:50Z  verdict  0s    HEALTHY -> LEASES_EXPIRED, expired 100 % (6/6)                    A sentence.
2m08s  00:37:52Z  write    2s    Deployment/cluster-autoscaler scale to 0: REFUSED (forbidden)     A sentence.
";
        let shown = render(&events, &testing::pipe());
        let normal = |text: &str| -> Vec<String> {
            text.lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect()
        };
        assert_eq!(normal(&shown), normal(expected));
    }

    #[test]
    fn a_change_of_mode_shows_why_and_until_when() {
        let until = ModeChanged {
            previous_mode: Mode::Protect.into(),
            mode: Mode::Observe.into(),
            reason: ModeChangeReason::Annotation.into(),
            mode_until: Some(prost_types::Timestamp {
                seconds: 1_796_126_400,
                nanos: 0,
            }),
        };
        assert_eq!(
            mode_change(&until),
            "protect -> observe until 2026-12-01T12:00:00Z: annotation"
        );
        let ended = ModeChanged {
            previous_mode: Mode::Observe.into(),
            mode: Mode::Protect.into(),
            reason: ModeChangeReason::Ended.into(),
            mode_until: None,
        };
        assert_eq!(
            mode_change(&ended),
            "observe -> protect: the annotation's mode has ended"
        );
    }

    #[test]
    fn each_kind_of_event_says_what_changed() {
        let resource = testing::resource("machine-controller-manager", 0, Step::Waiting).resource;
        let write = |result: WriteResult| WriteEnded {
            resource: resource.clone(),
            write: "scale to 0".to_owned(),
            result: result.into(),
            ..Default::default()
        };
        let direction = DirectionChanged {
            previous_direction: Direction::Up.into(),
            direction: Direction::Down.into(),
            ..Default::default()
        };
        let step = StepChanged {
            resource: resource.clone(),
            previous_step: Step::Waiting.into(),
            step: Step::Reached.into(),
            previous_step_took: testing::seconds(7),
            ..Default::default()
        };
        let mode = ModeChanged {
            mode: Mode::Off.into(),
            reason: ModeChangeReason::Withdrawn.into(),
            ..Default::default()
        };
        let ended = IncidentEnded {
            outcome: Outcome::LeasesExpired.into(),
            last_renewal_to_verdict: testing::seconds(40),
            verdict_to_last_write: testing::seconds(3),
            verdict_to_healthy: testing::seconds(300),
            verdict_to_restored: testing::seconds(312),
            scaled_down: 3,
            scaled_up: 2,
            failed_writes: 1,
            ..Default::default()
        };
        let frame = Frame {
            color: true,
            ..testing::pipe()
        };
        let name = "Deployment/machine-controller-manager";
        for (event, color, parts) in [
            (
                Some(Event::DirectionChanged(direction)),
                "",
                ["direction", "up -> down"],
            ),
            (
                Some(Event::StepChanged(step)),
                "",
                ["step  7s", &format!("{name} WAITING -> REACHED")],
            ),
            (
                Some(Event::WriteEnded(write(WriteResult::Applied))),
                "",
                ["write", &format!("{name} scale to 0: APPLIED")],
            ),
            (
                Some(Event::WriteEnded(write(WriteResult::Conflict))),
                "\x1b[33m",
                ["write", "CONFLICT"],
            ),
            (
                Some(Event::WriteEnded(write(WriteResult::Refused))),
                "\x1b[31;1m",
                ["write", "REFUSED"],
            ),
            (
                Some(Event::ModeChanged(mode)),
                "\x1b[33m",
                ["mode", "off: annotation gone or malformed"],
            ),
            (
                Some(Event::IncidentEnded(ended)),
                "\x1b[32m",
                [
                    "incident ended",
                    "LEASES_EXPIRED after 40s: last write down after 3s, healthy after 5m00s; 3 down, 2 up, 1 write \
                     failed  ",
                ],
            ),
            // An event of a newer coordinator keeps its sentence.
            (None, "", ["-     -     -", "A sentence."]),
        ] {
            let event = ShootEvent {
                at: testing::ago(1),
                message: "A sentence.".to_owned(),
                event,
                ..Default::default()
            };
            let shown = render(&[event], &frame);
            for part in parts.into_iter().chain([color]) {
                assert!(shown.contains(part), "{part:?} is not in {shown:?}");
            }
        }
        let none = render(&[], &frame);
        assert!(
            none.starts_with("Nothing has happened to this shoot since"),
            "{none}"
        );
    }

    #[test]
    fn one_failed_write_is_a_write_and_any_other_number_are_writes() {
        for (failed_writes, expected) in [
            (0, "0 writes failed"),
            (1, "1 write failed"),
            (2, "2 writes failed"),
        ] {
            let shown = incident(&IncidentEnded {
                failed_writes,
                ..Default::default()
            });
            assert!(shown.contains(expected), "{shown}");
        }
    }

    #[test]
    fn an_incident_in_mode_observe_shows_who_was_first() {
        let other = OtherWrote {
            resource: testing::resource("kube-controller-manager", 1, Default::default()).resource,
            from_replicas: 2,
            writer: "dependency-watchdog".to_owned(),
            ..Default::default()
        };
        let ended = IncidentEnded {
            in_mode_observe: true,
            scale_down_lead_seconds: Some(12.04),
            ..Default::default()
        };
        let of = |event| {
            parts(&ShootEvent {
                event: Some(event),
                ..Default::default()
            })
        };
        let (_, _, details) = of(Event::OtherWrote(other));
        assert_eq!(
            details,
            "Deployment/kube-controller-manager 2 -> 0 by dependency-watchdog"
        );
        let (_, _, details) = of(Event::IncidentEnded(ended.clone()));
        assert!(details.ends_with("; mode observe, lead 12.0 s"), "{details}");
        let alone = IncidentEnded {
            scale_down_lead_seconds: None,
            ..ended
        };
        let (_, _, details) = of(Event::IncidentEnded(alone));
        assert!(
            details.ends_with("; mode observe, no other writer to compare with"),
            "{details}"
        );
    }
}
