//! The checker of everything that runs: it judges what happened by the safety invariants S1 to S6.
//!
//! | | invariant | evidence |
//! | --- | --- | --- |
//! | S1 | no scale-down without a valid verdict of a loss | the nodes were cut off for long enough, where the test cuts them off |
//! | S2 | never on unreachable, throttled, inconclusive, stale or missing verdicts | the verdict at a scale-down, where verdicts are recorded |
//! | S3 | the order of the levels holds | each change of `spec.replicas` against what was ready at that version, or when its write came in |
//! | S4 | no replica count of a shoot that hibernates, migrates or is deleted is ever written | versions of the Cluster against those of the dependants |
//! | S5 | one coordinator acts on a shoot at a time | the writes and their authors, as the API server recorded them |
//! | S6 | what was scaled down is restored to its count | the counts recorded, and the state at the end |
//!
//! S1 to S4 and S6 are judged by a [`Timeline`](timeline::Timeline), which watches the seed
//! ([`invariants::violations`]). S5 is judged by the record of an API server ([`History::check`]). Every replica has
//! credentials of its own, its user is its identity; so the record names the author of every write. The leader's Lease
//! is in the same record, in the same order: it says who led when a write came in.
//!
//! # What is meant by "at most one acts on a shoot at any time"
//!
//! - An *action* on a shoot is a request that would change one of its resources, from its arrival at the API server to
//!   its end, whether or not it was granted.
//! - A *term* is the time between two changes of the holder of the leader's Lease.
//! - The *interval of action* of a term on a shoot reaches from the first action on it to the last.
//!
//! Then, for every shoot:
//!
//! 1. intervals of action of different replicas do not overlap ([`Invariant::Overlap`]);
//! 2. a replica that acts holds the leader's Lease, renewed less than its duration ago ([`Invariant::NoLease`]);
//! 3. where another replica goes on, the one before has let go, and the record shows how: it released the Lease, or it
//!    had not renewed it for its duration when another took it ([`Invariant::NotHandedOver`]).

mod claims;
pub mod invariants;
mod sources;
#[cfg(test)]
mod tests;
pub mod timeline;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

use self::claims::{Claims, Term};
use self::invariants::{Expectation, violations};
pub use self::sources::{AuditFile, from_sandbox};
use self::timeline::{Fact, Timeline, TimelineEntry};

/// The Lease by which coordinators elect a leader (`scaling_coordinator::app::LEADER_LEASE`).
pub const LEADER_LEASE: &str = "scaling-coordinator-leader";

/// Another replica may take the Lease when its duration is over by a clock that runs 10 % fast. A leader whose clock
/// runs 10 % slow stops before.
const CLOCK_SPEED: f64 = 1.1;

/// A request that would change something, as the API server recorded it.
#[derive(Debug, Clone)]
pub struct Write {
    /// When it came in.
    pub at: Timestamp,
    /// When its effect was there, or it was refused.
    pub done: Timestamp,
    /// The user, which is the identity of the replica.
    pub author: String,
    /// `create`, `update`, `patch` or `delete`.
    pub verb: String,
    /// Path of the request.
    pub path: String,
    /// True if it took effect.
    pub applied: bool,
    /// The body; null when the record has none.
    pub body: Value,
}

/// An invariant, or a part of S5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invariant {
    /// No scale-down without a loss.
    S1,
    /// No scale-down without a verdict of a loss.
    S2,
    /// The order of the levels.
    S3,
    /// Nothing is written to a shoot that is not protected.
    S4,
    /// S5: two replicas acted on a shoot at once.
    Overlap,
    /// S5: a replica acted without the leader's Lease.
    NoLease,
    /// S5: a replica acted although the one before had not let go.
    NotHandedOver,
    /// Counts are recorded and restored.
    S6,
}

/// A breach of one of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The broken one.
    pub invariant: Invariant,
    /// The namespace of the shoot.
    pub shoot: String,
    /// The actor and the action, for people.
    pub what: String,
    /// When; none at the end of a history.
    pub at: Option<Timestamp>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.invariant, self.shoot, self.what)?;
        match self.at {
            Some(at) => write!(f, " ({at})"),
            None => Ok(()),
        }
    }
}

/// How shoots changed hands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handovers {
    /// After the one before had released the Lease.
    pub released: usize,
    /// After the one before had not renewed it for its duration.
    pub expired: usize,
}

/// The result of checking a history.
#[derive(Debug, Clone, Default)]
pub struct HistoryReport {
    /// Actions on shoots, by replica.
    pub actions: BTreeMap<String, usize>,
    /// How shoots changed hands.
    pub handovers: Handovers,
    pub violations: Vec<Violation>,
    /// The whole timeline of each shoot with a violation, for people.
    pub timelines: BTreeMap<String, Vec<TimelineEntry>>,
}

/// The content of a record.
#[derive(Debug)]
pub struct History {
    /// By arrival.
    writes: Vec<Write>,
    claims: Claims,
}

/// An action on a shoot, with the term in which it was done.
#[derive(Debug, Clone)]
struct ShootAction<'a> {
    write: &'a Write,
    term: Option<Term>,
}

// === impl History ===

impl History {
    /// From the writes of a record, in any order.
    #[must_use]
    pub fn new(mut writes: Vec<Write>) -> Self {
        writes.sort_by_key(|write| (write.at, write.done));
        Self {
            claims: Claims::read(&writes),
            writes,
        }
    }

    /// The replica that acted on a shoot last.
    #[must_use]
    pub fn last_author(&self, shoot: &str) -> Option<&str> {
        let on_shoot = |write: &&Write| shoot_of(&write.path) == Some(shoot);
        self.writes
            .iter()
            .rev()
            .find(on_shoot)
            .map(|write| write.author.as_str())
    }

    /// Verb and path of each write into the namespace of a shoot, in order.
    #[must_use]
    pub fn writes_into(&self, namespace: &str) -> Vec<String> {
        let part = format!("/namespaces/{namespace}/");
        let writes = self.writes.iter().filter(|write| write.path.contains(&part));
        writes
            .map(|write| format!("{} {}", write.verb, write.path))
            .collect()
    }

    /// Names of the Deployments of a shoot that were scaled, in the order of the writes.
    #[must_use]
    pub fn scaled(&self, shoot: &str) -> Vec<String> {
        let prefix = format!("/apis/apps/v1/namespaces/{shoot}/deployments/");
        let scaled = |write: &Write| {
            let name = write.path.strip_prefix(&prefix)?;
            if let Some(name) = name.strip_suffix("/scale") {
                return Some(name.to_owned());
            }
            write.body.pointer("/spec/replicas").map(|_| name.to_owned())
        };
        let writes = self.writes.iter().filter(|write| write.applied);
        writes.filter_map(scaled).collect()
    }

    /// When the writes to the dependants of a shoot came in.
    fn arrivals(&self, shoot: &str) -> impl Iterator<Item = TimelineEntry> {
        let on_shoot = move |write: &&Write| write.applied && shoot_of(&write.path) == Some(shoot);
        self.writes.iter().filter(on_shoot).filter_map(arrival)
    }

    /// Judges shoots by all of S1 to S6: by the record of the writes, and by a timeline that may begin later.
    #[must_use]
    pub fn check_with<'a>(
        &self,
        timeline: &Timeline,
        shoots: impl IntoIterator<Item = &'a str>,
        expected: &Expectation,
    ) -> HistoryReport {
        let mut report = self.check();
        for shoot in shoots {
            let mut entries = timeline.of(shoot);
            // An etcd that was restored before the timeline began has given the same versions to other objects.
            let begin = entries.first().map(|entry| entry.at);
            let arrivals = self.arrivals(shoot);
            entries.extend(arrivals.filter(|arrival| Some(arrival.at) >= begin));
            let found = violations(shoot, &entries, expected);
            if !found.is_empty() {
                entries.sort_by_key(|entry| entry.at);
                report.timelines.insert(shoot.to_owned(), entries);
            }
            report.violations.extend(found);
        }
        report
    }

    /// Judges everything in it by S5.
    #[must_use]
    pub fn check(&self) -> HistoryReport {
        let mut report = HistoryReport::default();
        let mut by_shoot: BTreeMap<&str, Vec<ShootAction<'_>>> = BTreeMap::new();
        for write in &self.writes {
            let Some(shoot) = shoot_of(&write.path) else {
                continue;
            };
            *report.actions.entry(write.author.clone()).or_default() += 1;
            let term = self.claims.current(&write.author, write.at);
            by_shoot
                .entry(shoot)
                .or_default()
                .push(ShootAction { write, term });
        }
        for (shoot, actions) in &by_shoot {
            self.leases(shoot, actions, &mut report);
            self.handovers(shoot, actions, &mut report);
            overlaps(shoot, actions, &mut report);
        }
        report
    }

    fn leases(&self, shoot: &str, actions: &[ShootAction<'_>], report: &mut HistoryReport) {
        for ShootAction { write, .. } in actions {
            if let Err(why) = self.claims.is_held(&write.author, write.at) {
                let what = format!("{} acted without the leader's Lease: {why}", write.author);
                report.add(Invariant::NoLease, shoot, write.at, what);
            }
        }
    }

    fn handovers(&self, shoot: &str, actions: &[ShootAction<'_>], report: &mut HistoryReport) {
        for pair in actions.windows(2) {
            let [before, after] = pair else { continue };
            let (from, to) = (&before.write.author, &after.write.author);
            if from == to {
                continue;
            }
            match self.claims.let_go((from, before.term), after.write.at) {
                Some(claims::ReleaseKind::Released) => report.handovers.released += 1,
                Some(claims::ReleaseKind::Expired) => report.handovers.expired += 1,
                None => {
                    let what = format!("{to} acted after {from}, which had not let go");
                    report.add(Invariant::NotHandedOver, shoot, after.write.at, what);
                }
            }
        }
    }
}

/// Intervals of action that overlap.
fn overlaps(shoot: &str, actions: &[ShootAction<'_>], report: &mut HistoryReport) {
    let mut intervals: BTreeMap<(&str, Option<Term>), (Timestamp, Timestamp)> = BTreeMap::new();
    for ShootAction { write, term } in actions {
        let interval = intervals
            .entry((&write.author, *term))
            .or_insert((write.at, write.done));
        interval.1 = interval.1.max(write.done);
    }
    let mut intervals: Vec<_> = intervals
        .into_iter()
        .map(|((author, _), interval)| (interval, author))
        .collect();
    intervals.sort_unstable();
    let mut latest: Option<(Timestamp, &str)> = None;
    for ((begin, end), author) in intervals {
        if let Some((until, other)) = latest
            && other != author
            && begin < until
        {
            report.add(
                Invariant::Overlap,
                shoot,
                begin,
                format!("{author} acted while {other} did"),
            );
        }
        if latest.is_none_or(|(until, _)| end > until) {
            latest = Some((end, author));
        }
    }
}

fn arrival(write: &Write) -> Option<TimelineEntry> {
    let (_, rest) = write.path.split_once("/deployments/")?;
    let against = write.body.pointer("/metadata/resourceVersion")?.as_str()?;
    Some(TimelineEntry {
        at: write.at,
        fact: Fact::Arrival {
            name: rest.split('/').next()?.to_owned(),
            against: against.parse().ok()?,
        },
    })
}

/// The shoot whose resource a path names; none for anything else. Kubernetes Events are no actions.
fn shoot_of(path: &str) -> Option<&str> {
    let (_, rest) = path.strip_prefix("/apis/apps/v1")?.split_once("/namespaces/")?;
    rest.split('/').next()
}

impl HistoryReport {
    fn add(&mut self, invariant: Invariant, shoot: &str, at: Timestamp, what: String) {
        self.violations.push(Violation {
            invariant,
            shoot: shoot.to_owned(),
            what,
            at: Some(at),
        });
    }

    /// True if one of the violations is of this invariant.
    #[must_use]
    pub fn breaks(&self, invariant: Invariant) -> bool {
        self.violations
            .iter()
            .any(|violation| violation.invariant == invariant)
    }

    /// Fails with everything that a person wants to see, when there is a violation.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.violations.is_empty(), "{self}");
        Ok(())
    }
}

impl fmt::Display for HistoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "actions {:?}, {:?}", self.actions, self.handovers)?;
        for violation in &self.violations {
            write!(f, "\n  {violation}")?;
        }
        for (shoot, entries) in &self.timelines {
            write!(f, "\n  {shoot}:")?;
            for entry in entries {
                write!(f, "\n    {} {:?}", entry.at, entry.fact)?;
            }
        }
        Ok(())
    }
}
