//! The record of an incident: from the first decision to scale down, or the first write, until the shoot is healthy
//! again, nothing is held down and every resource is where it was; or until its Cluster releases the shoot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;
use watchdog_api::names::COORDINATOR_FIELD_MANAGER;
use watchdog_api::prober::ResourceRef;
use watchdog_api::unix_time::micros;

use super::Direction;
use super::decision::{Decision, EvidenceCounts, ReportedOutcome};
use super::other_writes::OtherWrite;
use super::request::Request;
use super::request::RequestOutcome;

/// The incidents of a shoot that are known: bounded by what one incident can hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ShootIncidents {
    /// The one that runs.
    pub(crate) current: Option<Arc<Incident>>,
    /// The one that has ended last.
    pub(crate) last: Option<Arc<Incident>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Incident {
    /// The outcome that began it; none when the replica began to lead within it, or while only others have scaled.
    pub(crate) outcome: Option<ReportedOutcome>,
    /// The sentence of the decision that began it.
    pub(crate) reason: String,
    /// When lease-probe found the loss that began it, also if this replica began to lead later; without a loss, when
    /// the first resource was scaled.
    pub(crate) started: Instant,
    /// When this replica decided on that loss.
    decided: Option<Instant>,
    pub(crate) last_renewal_to_verdict: Option<Duration>,
    /// The first and the last write down.
    pub(crate) written_down: Option<(Instant, Instant)>,
    pub(crate) healthy: Option<Instant>,
    /// When it ended: everything was restored, or the shoot was released.
    pub(crate) restored: Option<Instant>,
    pub(crate) failed_writes: u32,
    pub(crate) last_error: String,
    /// The evidence with the highest share of expired candidates.
    pub(crate) peak: Option<Arc<EvidenceCounts>>,
    /// A scale-up that a later scale-down reverses does not count.
    pub(crate) scalings: BTreeMap<(ResourceRef, Direction), Scaling>,
}

/// When a resource was first scaled in a direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Scaling {
    /// By this program, or when mode observe kept that back.
    pub(crate) ours: Option<Instant>,
    kept_back: bool,
    /// By somebody else, with its name in managedFields.
    pub(crate) other: Option<(Instant, String)>,
}

/// This program beside the other writers, in one direction of an incident in mode observe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Comparison {
    /// This program would have scaled before them.
    Earlier,
    /// They scaled before this program would have.
    Later,
    /// Only this program would have scaled.
    Alone,
    /// Only they scaled.
    OtherAlone,
}

/// The comparison in one direction, and what it rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compared<'a> {
    pub(crate) result: Comparison,
    /// The program that scaled first, or would have.
    pub(crate) first: &'a str,
    /// By how much this program was earlier than all others, in microseconds; negative if it was later. None if only
    /// one of the two scaled.
    pub(crate) lead_micros: Option<i64>,
}

// === impl Comparison ===

impl Comparison {
    pub(crate) fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl ShootIncidents ===

impl ShootIncidents {
    fn current(&mut self, now: Instant) -> &mut Incident {
        let new = || Arc::new(Incident::new(now));
        Arc::make_mut(self.current.get_or_insert_with(new))
    }

    /// `found` is when the loss or the recovery was found that the decision rests on.
    pub(crate) fn note_decision(&mut self, now: Instant, found: Instant, decision: &Decision) {
        match (decision.direction, &mut self.current) {
            (Some(Direction::Down), _) => self.current(now).note_loss(now, found, decision),
            (Some(Direction::Up), Some(current)) if current.healthy.is_none() => {
                Arc::make_mut(current).healthy = Some(found);
            }
            _ => {}
        }
    }

    /// A write has ended or was kept back.
    pub(crate) fn note_write(&mut self, now: Instant, write: &Request, outcome: &RequestOutcome) {
        let is_cancelled = matches!(outcome, RequestOutcome::Cancelled { .. });
        if write.direction != Direction::Release && !is_cancelled {
            self.current(now).note_write(now, write, outcome);
        }
    }

    /// Somebody else has scaled a resource. A scale-down begins an incident also without a verdict.
    pub(crate) fn note_other(&mut self, now: Instant, other: &OtherWrite) {
        if other.direction == Direction::Down || self.current.is_some() {
            let scaling = self.current(now).scaling(&other.reference, other.direction);
            scaling.other.get_or_insert_with(|| (now, other.writer.clone()));
        }
    }

    /// Ends the incident of a shoot of which nothing is left to do in this direction. A shoot that was found healthy is
    /// restored; one that hibernates, migrates or is being deleted is released, because what it does later is no part
    /// of the incident.
    pub(crate) fn end(&mut self, now: Instant, direction: Option<Direction>) -> Option<Arc<Incident>> {
        let mut ended = self.current.take_if(|current| match direction {
            Some(Direction::Up) => current.healthy.is_some(),
            Some(Direction::Release) => true,
            Some(Direction::Down) | None => false,
        })?;
        Arc::make_mut(&mut ended).restored = Some(now);
        self.last = Some(ended.clone());
        Some(ended)
    }
}

// === impl Incident ===

impl Incident {
    const fn new(started: Instant) -> Self {
        Self {
            outcome: None,
            reason: String::new(),
            started,
            decided: None,
            last_renewal_to_verdict: None,
            written_down: None,
            healthy: None,
            restored: None,
            failed_writes: 0,
            last_error: String::new(),
            peak: None,
            scalings: BTreeMap::new(),
        }
    }

    fn note_loss(&mut self, now: Instant, found: Instant, decision: &Decision) {
        self.healthy = None;
        let Some(verdict) = &decision.decided_by else {
            return;
        };
        if self.outcome.is_none() && self.written_down.is_none() {
            (self.outcome, self.started, self.decided) = (Some(verdict.outcome), found, Some(now));
            self.reason.clone_from(&decision.reason);
            self.last_renewal_to_verdict = verdict
                .last_renewal()
                .and_then(|renewed| found.checked_duration_since(renewed));
        }
        if let Some(evidence) = &verdict.evidence
            && evidence.expired_share() > self.peak_expired_share()
        {
            self.peak = Some(evidence.clone());
        }
    }

    fn note_write(&mut self, now: Instant, write: &Request, outcome: &RequestOutcome) {
        if !matches!(outcome, RequestOutcome::Done | RequestOutcome::KeptBack) {
            self.failed_writes += 1;
            let why = outcome.error().unwrap_or("the resource had changed");
            self.last_error = format!("{}: {write}: {why}", write.reference);
            return;
        }
        let scaling = self.scaling(&write.reference, write.direction);
        scaling.ours.get_or_insert(now);
        scaling.kept_back |= *outcome == RequestOutcome::KeptBack;
        if write.direction == Direction::Down {
            self.written_down.get_or_insert((now, now)).1 = now;
        } else {
            // Nothing is scaled up without a healthy verdict.
            self.healthy.get_or_insert(now);
        }
    }

    fn scaling(&mut self, reference: &ResourceRef, direction: Direction) -> &mut Scaling {
        if direction == Direction::Down {
            self.scalings.remove(&(reference.clone(), Direction::Up));
        }
        self.scalings.entry((reference.clone(), direction)).or_default()
    }

    /// The time from its beginning until then.
    pub(crate) fn until(&self, at: Option<Instant>) -> Option<Duration> {
        at.map(|at| at.saturating_duration_since(self.started))
    }

    pub(crate) fn until_first_write(&self) -> Option<Duration> {
        self.until(self.written_down.map(|(first, _)| first))
    }

    pub(crate) fn until_last_write(&self) -> Option<Duration> {
        self.until(self.written_down.map(|(_, last)| last))
    }

    pub(crate) fn healthy_to_restored(&self) -> Option<Duration> {
        let (healthy, restored) = self.healthy.zip(self.restored)?;
        Some(restored.saturating_duration_since(healthy))
    }

    pub(crate) fn peak_expired_share(&self) -> Option<f64> {
        self.peak.as_ref()?.expired_share()
    }

    /// Resources that this program scaled in a direction, or would have.
    pub(crate) fn scaled(&self, direction: Direction) -> usize {
        self.in_direction(direction)
            .filter(|scaling| scaling.ours.is_some())
            .count()
    }

    /// Returns true if the mode was observe, and writes were kept back or somebody else scaled.
    pub(crate) fn in_mode_observe(&self) -> bool {
        let mut scalings = self.scalings.values();
        scalings.any(|scaling| scaling.kept_back || scaling.other.is_some())
    }

    fn in_direction(&self, direction: Direction) -> impl Iterator<Item = &Scaling> {
        let scalings = self.scalings.iter();
        scalings
            .filter(move |((_, of), _)| *of == direction)
            .map(|(_, scaling)| scaling)
    }

    /// The first scaling by this program and by others. If others left nothing to scale, the decision counts.
    fn first(&self, direction: Direction) -> (Option<Instant>, Option<&(Instant, String)>) {
        let ours = self
            .in_direction(direction)
            .filter_map(|scaling| scaling.ours)
            .min();
        let others = self
            .in_direction(direction)
            .filter_map(|scaling| scaling.other.as_ref());
        let other = others.min_by_key(|(at, _)| *at);
        let decided = match direction {
            Direction::Down => self.decided,
            Direction::Up | Direction::Release => self.healthy.filter(|_| self.decided.is_some()),
        };
        let decided = decided.filter(|_| other.is_some());
        (ours.or(decided), other)
    }

    /// In mode observe, the comparison with the other writers in a direction; none if nobody scaled.
    pub(crate) fn compare(&self, direction: Direction) -> Option<Compared<'_>> {
        let (ours, other) = self.first(direction);
        let (result, first) = match (ours, other) {
            _ if !self.in_mode_observe() => return None,
            (None, None) => return None,
            (Some(ours), Some((other, writer))) if *other < ours => (Comparison::Later, &**writer),
            (Some(_), Some(_)) => (Comparison::Earlier, COORDINATOR_FIELD_MANAGER),
            (Some(_), None) => (Comparison::Alone, COORDINATOR_FIELD_MANAGER),
            (None, Some((_, writer))) => (Comparison::OtherAlone, &**writer),
        };
        let both = ours.zip(other);
        Some(Compared {
            result,
            first,
            lead_micros: both.map(|(ours, (other, _))| micros_between(ours, *other)),
        })
    }

    /// One sentence for people about an incident that has ended.
    pub(crate) fn summary(&self) -> String {
        let took = self.until(self.restored).unwrap_or_default();
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let took = watchdog_api::duration::format(Duration::from_millis(millis));
        let (down, up) = (self.scaled(Direction::Down), self.scaled(Direction::Up));
        let verb = if self.in_mode_observe() {
            "were or would have been"
        } else {
            "were"
        };
        let comparison = self.comparison().map(|comparison| format!("; {comparison}"));
        let comparison = comparison.unwrap_or_default();
        format!(
            "The incident has ended after {took}: {down} resources {verb} scaled down and {up} up{comparison}."
        )
    }

    fn comparison(&self) -> Option<String> {
        let compared = self.compare(Direction::Down)?;
        let (first, lead) = (compared.first, compared.lead_seconds().unwrap_or_default());
        let (_, other) = self.first(Direction::Down);
        let other = other.map(|(_, writer)| &**writer).unwrap_or_default();
        Some(match compared.result {
            Comparison::Earlier => format!("{first} would have scaled down {lead} s before {other}"),
            Comparison::Later => format!(
                "{first} scaled down {} s before {COORDINATOR_FIELD_MANAGER} would have",
                -lead
            ),
            Comparison::Alone => format!("only {first} would have scaled down"),
            Comparison::OtherAlone => format!("only {first} scaled down"),
        })
    }
}

// === impl Compared ===

impl Compared<'_> {
    /// The lead in seconds, to the millisecond.
    pub(crate) fn lead_seconds(&self) -> Option<f64> {
        self.lead_micros.map(|micros| (micros as f64 / 1e3).round() / 1e3)
    }
}

/// Microseconds from one instant to another; negative if that is earlier.
pub(crate) fn micros_between(from: Instant, to: Instant) -> i64 {
    micros(to.saturating_duration_since(from)) - micros(from.saturating_duration_since(to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::decision::{ReceivedVerdict, StreamCounts, decide};
    use crate::domain::testing::{self, S, dependent, start, write};

    const GO: &str = "dependency-watchdog";

    fn loss(at: Instant, expired: u32) -> Decision {
        let verdict = ReceivedVerdict {
            evidence: Some(Arc::new(EvidenceCounts {
                candidates: 4,
                expired,
                newest_expired_renewal: Some(32 * S),
                grace: Some(40 * S),
                ..EvidenceCounts::default()
            })),
            ..testing::verdict(ReportedOutcome::LeasesExpired, at)
        };
        decide(at, [&verdict], StreamCounts::default())
    }

    fn up() -> Decision {
        Decision {
            direction: Some(Direction::Up),
            ..loss(start(), 0)
        }
    }

    fn other(direction: Direction) -> OtherWrite {
        OtherWrite {
            reference: dependent("kcm", 0, 0).reference,
            direction,
            from: 0,
            to: 0,
            writer: GO.to_owned(),
        }
    }

    #[test]
    fn a_record_has_the_time_of_each_stage() {
        let (mut incidents, t0) = (ShootIncidents::default(), start());
        incidents.note_decision(t0, t0, &up());
        assert_eq!(incidents.current, None, "a healthy shoot has no incident");
        for (seconds, expired) in [(1, 3), (4, 4), (5, 3)] {
            incidents.note_decision(t0 + S * seconds, t0 + S * seconds, &loss(t0, expired));
        }
        let refused = RequestOutcome::Refused {
            why: "forbidden".to_owned(),
            retry_after: None,
        };
        for (seconds, name, outcome) in [
            (2, "mcm", &refused),
            (3, "mcm", &RequestOutcome::Done),
            (6, "kcm", &RequestOutcome::Done),
        ] {
            incidents.note_write(t0 + S * seconds, &write(name, Direction::Down), outcome);
        }
        assert_eq!(
            incidents.end(t0 + 7 * S, Some(Direction::Up)),
            None,
            "it is not healthy"
        );
        // It is lost again before everything is restored.
        incidents.note_decision(t0 + 50 * S, t0 + 50 * S, &up());
        incidents.note_write(t0 + 51 * S, &write("kcm", Direction::Up), &RequestOutcome::Done);
        incidents.note_decision(t0 + 52 * S, t0 + 52 * S, &loss(t0 + 52 * S, 3));
        incidents.note_write(t0 + 53 * S, &write("kcm", Direction::Down), &RequestOutcome::Done);
        incidents.note_decision(t0 + 61 * S, t0 + 61 * S, &up());
        incidents.note_write(t0 + 62 * S, &write("mcm", Direction::Up), &RequestOutcome::Done);
        let ended = incidents.end(t0 + 71 * S, Some(Direction::Up)).unwrap();
        assert_eq!((incidents.current, incidents.last), (None, Some(ended.clone())));
        assert_eq!(ended.outcome, Some(ReportedOutcome::LeasesExpired));
        assert_eq!(
            ended.last_renewal_to_verdict,
            Some(33 * S),
            "the verdict was 1 s old"
        );
        assert_eq!(
            (ended.until_first_write(), ended.until_last_write()),
            (Some(2 * S), Some(52 * S))
        );
        assert_eq!(
            (ended.until(ended.healthy), ended.healthy_to_restored()),
            (Some(60 * S), Some(10 * S))
        );
        assert_eq!(
            (ended.scaled(Direction::Down), ended.scaled(Direction::Up)),
            (2, 1),
            "one up was void"
        );
        assert_eq!((ended.failed_writes, ended.peak_expired_share()), (1, Some(1.0)));
        assert!(
            ended
                .last_error
                .ends_with("mcm: remove meltdown-protection-active: forbidden"),
            "{}",
            ended.last_error
        );
        assert_eq!(
            ended.summary(),
            "The incident has ended after 1m10s: 2 resources were scaled down and 1 up."
        );
    }

    /// Otherwise the hours in which the shoot hibernates would count as silence.
    #[test]
    fn an_incident_ends_when_its_shoot_is_released() {
        let (mut incidents, t0) = (ShootIncidents::default(), start());
        incidents.note_decision(t0, t0, &loss(t0, 4));
        for direction in [None, Some(Direction::Down), Some(Direction::Up)] {
            assert_eq!(incidents.end(t0 + S, direction), None, "{direction:?}");
        }
        let ended = incidents.end(t0 + 9 * S, Some(Direction::Release)).unwrap();
        assert_eq!((ended.healthy, ended.until(ended.restored)), (None, Some(9 * S)));
        // It wakes up.
        incidents.note_decision(t0 + 9_000 * S, t0 + 9_000 * S, &up());
        assert_eq!((incidents.current, incidents.last), (None, Some(ended)));
    }

    #[test]
    fn writes_of_a_new_leader_are_an_incident_without_an_outcome() {
        let (mut incidents, t0) = (ShootIncidents::default(), start());
        let why = "this process is stopping";
        incidents.note_write(
            t0,
            &write("kcm", Direction::Up),
            &RequestOutcome::Cancelled { why },
        );
        incidents.note_write(t0, &write("kcm", Direction::Release), &RequestOutcome::Done);
        assert_eq!(incidents.current, None, "nothing was scaled");
        incidents.note_write(t0, &write("kcm", Direction::Up), &RequestOutcome::Done);
        let ended = incidents.end(t0 + S, Some(Direction::Up)).unwrap();
        assert_eq!((ended.outcome, ended.scaled(Direction::Up)), (None, 1));
        assert_eq!(ended.compare(Direction::Up), None, "nobody was compared with");
    }

    #[test]
    fn a_record_of_mode_observe_says_who_was_first() {
        let t0 = start();
        let told = |ours: Option<u32>, others: Option<u32>| {
            let mut incidents = ShootIncidents::default();
            if let Some(at) = others.filter(|at| *at < 5) {
                incidents.note_other(t0 + S * at, &other(Direction::Down));
            }
            incidents.note_decision(t0 + 5 * S, t0 + 5 * S, &loss(t0, 4));
            if let Some(at) = ours {
                let kept_back = RequestOutcome::KeptBack;
                incidents.note_write(t0 + S * at, &write("kcm", Direction::Down), &kept_back);
            }
            if let Some(at) = others.filter(|at| *at >= 5) {
                incidents.note_other(t0 + S * at, &other(Direction::Down));
            }
            incidents.note_decision(t0 + 30 * S, t0 + 30 * S, &up());
            let ended = incidents.end(t0 + 31 * S, Some(Direction::Up)).unwrap();
            (ended.compare(Direction::Down).unwrap().result, ended.summary())
        };
        let earlier = "scaling-coordinator would have scaled down 12 s before dependency-watchdog.";
        let later = "dependency-watchdog scaled down 2 s before scaling-coordinator would have.";
        let alone = "only scaling-coordinator would have scaled down.";
        let long_before = "dependency-watchdog scaled down 3 s before scaling-coordinator would have.";
        for (ours, others, result, says) in [
            (Some(6), Some(18), Comparison::Earlier, earlier),
            (Some(20), Some(18), Comparison::Later, later),
            (Some(6), None, Comparison::Alone, alone),
            // It had left nothing to scale when this program decided to.
            (None, Some(2), Comparison::Later, long_before),
        ] {
            let (found, summary) = told(ours, others);
            assert_eq!(found, result, "{ours:?} {others:?}");
            assert!(summary.ends_with(says), "{summary}");
        }
    }

    #[test]
    fn what_only_others_scale_is_an_incident_of_mode_observe() {
        let (mut incidents, t0) = (ShootIncidents::default(), start());
        incidents.note_other(t0, &other(Direction::Up));
        assert_eq!(incidents.current, None, "it begins with a scale-down");
        incidents.note_other(t0, &other(Direction::Down));
        incidents.note_decision(t0 + S, t0 + S, &up());
        incidents.note_other(t0 + 9 * S, &other(Direction::Up));
        let ended = incidents.end(t0 + 9 * S, Some(Direction::Up)).unwrap();
        assert!(ended.in_mode_observe());
        let only_others = Compared {
            result: Comparison::OtherAlone,
            first: GO,
            lead_micros: None,
        };
        assert_eq!(ended.compare(Direction::Down), Some(only_others));
        assert!(
            ended
                .summary()
                .ends_with("; only dependency-watchdog scaled down."),
            "{}",
            ended.summary()
        );
    }
}
