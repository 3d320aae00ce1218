//! Two witnesses of a shoot, and the direction that the coordinator's own rule derives from their verdicts.

use scaling_coordinator::domain;
use scaling_coordinator::domain::decision::{ReceivedVerdict, ReportedOutcome, StreamCounts, decide};
use tokio::time::Instant;

use crate::judge::{Direction, SeenVerdict};
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{MILLISECOND, Micros};
use crate::timeline::{FOREVER, Segment};
use crate::virtual_time::{ProbedShoot, duration};

/// From a verdict to the coordinator.
const DELIVERY: Micros = 20 * MILLISECOND;

/// The second prober of a history, which talks to another one of several API servers.
#[derive(Debug, Clone)]
pub(crate) struct SecondWitness {
    pub(crate) probers: Vec<TimeSpan>,
    /// Faults of that API server alone.
    pub(crate) segments: Vec<Segment>,
    /// A prober that ends is frozen: its last verdict stands until it is no longer valid.
    pub(crate) freezes: bool,
    /// By how much it learns later of other inputs.
    pub(crate) lags: Micros,
    /// By how much the clock of its host is ahead.
    pub(crate) clock_ahead: Micros,
}

/// As the coordinator receives it.
pub(crate) fn outcome(of: &lease_probe::domain::outcome::Outcome) -> ReportedOutcome {
    use lease_probe::domain::outcome::Outcome as Probed;
    match of {
        Probed::Healthy => ReportedOutcome::Healthy,
        Probed::LeasesExpired => ReportedOutcome::LeasesExpired,
        Probed::ExternalUnreachable => ReportedOutcome::ExternalUnreachable,
        Probed::Pending => ReportedOutcome::Pending,
        _ => ReportedOutcome::Undecided("INCONCLUSIVE"),
    }
}

/// The news of a witness at an instant: its verdict of that number, or none when its stream ends.
#[derive(Debug, Clone, Copy)]
struct Brought {
    at: Micros,
    witness: usize,
    verdict: Option<usize>,
}

/// Both witnesses together: what each asked for, and the directions that follow from their verdicts.
pub(crate) fn decided(
    witnesses: [&ProbedShoot; 2],
    runs: [&[TimeSpan]; 2],
    freezes: bool,
    length: Micros,
) -> ProbedShoot {
    let mut brought = Vec::new();
    for (witness, probed) in witnesses.iter().enumerate() {
        brought.extend(probed.verdicts.iter().enumerate().map(|(i, verdict)| Brought {
            at: verdict.at + DELIVERY,
            witness,
            verdict: Some(i),
        }));
        let ends = runs[witness].iter().map(|run| run.to).filter(|_| !freezes);
        brought.extend(ends.map(|end| Brought {
            at: end + DELIVERY,
            witness,
            verdict: None,
        }));
    }
    brought.sort_by_key(|brought| brought.at);
    let mut current: [Option<usize>; 2] = [None; 2];
    let mut decided = ProbedShoot::default();
    for (i, event) in brought.iter().enumerate() {
        current[event.witness] = event.verdict;
        let until = brought.get(i + 1).map_or(length, |next| next.at);
        let held = || current.into_iter().enumerate();
        let received: Vec<(&(Instant, ReceivedVerdict), &SeenVerdict)> = held()
            .filter_map(|(witness, i)| {
                Some((&witnesses[witness].received[i?], &witnesses[witness].verdicts[i?]))
            })
            .collect();
        let mut now = event.at;
        while now < until.max(event.at + 1) {
            let verdict = seen(now, &received);
            now = verdict.1.unwrap_or(FOREVER).max(now + 1);
            decided.verdicts.extend(verdict.0);
        }
    }
    for (witness, name) in witnesses.iter().zip(["A", "B"]) {
        let traffic = witness.traffic.iter();
        decided
            .traffic
            .extend(traffic.map(|(at, what)| (*at, format!("{name} {what}"))));
        let verdicts = witness.verdicts.iter();
        let said = verdicts.map(|verdict| (verdict.at, format!("{name} says {}", verdict.outcome)));
        decided.traffic.extend(said);
    }
    decided.traffic.sort_by_key(|(at, _)| *at);
    decided
}

/// The direction at `now`, and when to decide again although nothing has happened.
fn seen(
    now: Micros,
    received: &[(&(Instant, ReceivedVerdict), &SeenVerdict)],
) -> (Option<SeenVerdict>, Option<Micros>) {
    let Some(((first_sent, _), first_seen)) = received.first() else {
        let verdict = SeenVerdict {
            at: now,
            listed: now,
            asked: now,
            direction: Direction::Hold,
            outcome: "no stream".to_owned(),
        };
        return (Some(verdict), None);
    };
    // What was sent at `first_seen.at` gives the instant of any other time.
    let instant = |at: Micros| match at >= first_seen.at {
        true => *first_sent + duration(at - first_seen.at),
        false => *first_sent - duration(first_seen.at - at),
    };
    let time = |of: Instant| now + of.saturating_duration_since(instant(now)).as_micros() as Micros;
    let verdicts = received.iter().map(|((_, verdict), _)| verdict);
    let decision = decide(instant(now), verdicts, StreamCounts::default());
    let by = received
        .iter()
        .find(|((_, verdict), _)| Some(verdict) == decision.decided_by.as_ref());
    let (_, by) = by.unwrap_or(&received[0]);
    let verdict = SeenVerdict {
        at: now,
        listed: by.listed,
        asked: by.asked,
        direction: match decision.direction {
            Some(domain::Direction::Down) => Direction::Down,
            Some(domain::Direction::Up) => Direction::Up,
            Some(domain::Direction::Release) | None => Direction::Hold,
        },
        outcome: decision.reason,
    };
    (Some(verdict), decision.again_at.map(time))
}
