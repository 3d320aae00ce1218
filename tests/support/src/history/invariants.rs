//! Judges the timeline of a shoot by S1 to S4 and S6.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use watchdog_proto::probe::v1::Outcome;

use super::timeline::{Dependant, Fact, TimelineEntry};
use super::{Invariant, Violation};
use crate::fixtures::{CA, KCM, MCM};

/// The test receives verdicts on a stream of its own: earlier or later than the coordinator by up to this time.
const HEARING: SignedDuration = SignedDuration::from_secs(5);

/// How long a verdict of a loss may be acted upon after the nodes are back: until a kubelet renews, and the verdict on
/// that is there, or the one before it has run out.
const AFTERMATH: SignedDuration = SignedDuration::from_secs(15);

/// A write that was allowed when it left may arrive so much after the change of the Cluster that forbids it.
const IN_FLIGHT: SignedDuration = SignedDuration::from_secs(3);

/// Facts about a shoot besides its record.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// The dependants with their counts before anything happened.
    pub counts: Vec<(&'static str, i32)>,
    /// How its nodes are lost, where the test cuts them off: what S1 is judged by.
    pub nodes: Option<NodeTimes>,
    /// True if all should be restored at the end.
    pub restored: bool,
    /// True if verdicts were recorded all the time.
    pub verdicts: bool,
}

/// When nodes count as lost.
#[derive(Clone, Copy, Debug)]
pub struct NodeTimes {
    /// The shoot's grace period.
    pub grace: Duration,
    /// Between two renewals of a kubelet.
    pub renew_interval: Duration,
    /// Share of the nodes that must be lost.
    pub threshold: f64,
}

/// Everything that is wrong with the timeline of a shoot.
#[must_use]
pub fn violations(shoot: &str, entries: &[TimelineEntry], expected: &Expectation) -> Vec<Violation> {
    let mut checker = Checker {
        shoot,
        expected,
        entries,
        state: BTreeMap::new(),
        violations: Vec::new(),
    };
    // The order of the seed, not that in which two watches happened to tell.
    let mut seen: Vec<_> = entries
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::Dependant(dependant) => Some((dependant, entry.at)),
            _ => None,
        })
        .collect();
    seen.sort_by_key(|(dependant, _)| dependant.version);
    for (dependant, at) in seen {
        checker.check(dependant, at);
    }
    if expected.restored {
        checker.check_end();
    }
    checker.violations
}

struct Checker<'a> {
    shoot: &'a str,
    expected: &'a Expectation,
    entries: &'a [TimelineEntry],
    state: BTreeMap<&'a str, &'a Dependant>,
    violations: Vec<Violation>,
}

// === impl Checker ===

impl<'a> Checker<'a> {
    fn check(&mut self, now: &'a Dependant, at: Timestamp) {
        let Some(before) = self.state.insert(now.name.as_str(), now) else {
            return;
        };
        let operator = Fact::Operator(now.version);
        if self.entries.iter().any(|entry| entry.fact == operator) {
            return;
        }
        let (down, up) = (now.wanted < before.wanted, now.wanted > before.wanted);
        if down {
            // The seed's watch may have brought it later.
            self.loss_was_known(now, self.arrival(before).unwrap_or(at));
            if now.name == KCM {
                self.others_are((before, now, at), "down after the others", &[MCM, CA], |other| {
                    other.wanted == 0 && other.ready == 0
                });
            }
            let count = before.wanted.to_string();
            if now.recorded.as_ref() != Some(&count) || !now.held {
                self.add(
                    Invariant::S6,
                    now,
                    at,
                    &format!("went down from {count} without a record of it"),
                );
            }
        }
        if up {
            let first: &[&str] = match now.name.as_str() {
                MCM => &[KCM],
                CA => &[KCM, MCM],
                _ => &[],
            };
            self.others_are((before, now, at), "up before the others", first, |other| {
                other.ready > 0
            });
            let count = self.count(&now.name);
            if count.is_some_and(|count| count != now.wanted) {
                self.add(
                    Invariant::S6,
                    now,
                    at,
                    &format!("came up to {}, not {count:?}", now.wanted),
                );
            }
        }
        if now.recorded != before.recorded && now.recorded.as_deref() == Some("0") {
            self.add(Invariant::S6, now, at, "a count of 0 was recorded");
        }
        // To take off meltdown-protection-active alone is allowed.
        let ours = down || up || now.recorded != before.recorded || (now.held && !before.held);
        if ours {
            self.cluster_allows(now, at);
            if before.ignored && now.ignored && (down || up) {
                self.add(Invariant::S4, now, at, "must be left alone");
            }
        }
    }

    /// S1 and S2.
    fn loss_was_known(&mut self, now: &Dependant, at: Timestamp) {
        if self.expected.verdicts && !self.verdict_was_loss(at) {
            self.add(Invariant::S2, now, at, "went down without a verdict of a loss");
        }
        let Some(nodes) = self.expected.nodes else { return };
        let renew = SignedDuration::try_from(nodes.renew_interval).unwrap_or_default();
        let grace = SignedDuration::try_from(nodes.grace).unwrap_or_default();
        // A kubelet may have renewed last a whole interval, and a bit, before it was cut off.
        let silent = grace * 3 / 4 - renew * 5 / 4;
        let (mut since, mut until) = (None, None);
        for entry in self.entries.iter().filter(|entry| entry.at <= at) {
            if let Fact::Cut { cut, of } = entry.fact {
                let share = f64::from(u32::try_from(cut).unwrap_or(u32::MAX))
                    / f64::from(u32::try_from(of.max(1)).unwrap_or(u32::MAX));
                if share >= nodes.threshold {
                    // Back for less than a renewal takes: perhaps nobody renewed.
                    let was_back = until.is_some_and(|until| entry.at.duration_since(until) > renew * 3 / 2);
                    since = since.filter(|_| !was_back).or(Some(entry.at));
                    until = None;
                } else if since.is_some() && until.is_none() {
                    until = Some(entry.at);
                }
            }
        }
        let lost = since.is_some_and(|since| at.duration_since(since) >= silent)
            && until.is_none_or(|until| at.duration_since(until) <= AFTERMATH);
        if !lost {
            self.add(
                Invariant::S1,
                now,
                at,
                &format!("went down; nodes lost {since:?} until {until:?}"),
            );
        }
    }

    fn verdict_was_loss(&self, at: Timestamp) -> bool {
        let (from, to) = (at.saturating_sub(HEARING), at.saturating_add(HEARING));
        let (Ok(from), Ok(to)) = (from, to) else {
            return true;
        };
        let verdicts = self.entries.iter().filter_map(|entry| match entry.fact {
            Fact::Verdict(outcome) => Some((entry.at, outcome)),
            _ => None,
        });
        let (mut in_force, mut loss) = (None, false);
        for (when, outcome) in verdicts.take_while(|(when, _)| *when <= to) {
            if when < from {
                in_force = Some(outcome);
            } else {
                loss |= is_loss(outcome);
            }
        }
        loss || in_force.is_some_and(is_loss)
    }

    /// S3. A write that has come in cannot be taken back, and one that came in after it may show before it: the others
    /// count as they were when the write came in, where that is known.
    fn others_are(
        &mut self,
        (before, now, at): (&Dependant, &Dependant, Timestamp),
        what: &str,
        others: &[&str],
        good: impl Fn(&Dependant) -> bool,
    ) {
        let arrival = self.arrival(before);
        let was_good = |name: &str| {
            let seen = arrival.and_then(|arrival| self.seen(name, arrival));
            seen.is_some_and(&good)
        };
        let late: Vec<_> = others
            .iter()
            .filter_map(|name| self.state.get(name).copied())
            .filter(|other| !other.ignored && !good(other) && !was_good(&other.name))
            .map(|other| format!("{} wants {} and has {}", other.name, other.wanted, other.ready))
            .collect();
        if !late.is_empty() {
            let what = format!("went {what}, but {}", late.join(", "));
            self.add(Invariant::S3, now, at, &what);
        }
    }

    /// When the write that replaced this version came in: the last one against it, because one that changes nothing
    /// succeeds and replaces nothing.
    fn arrival(&self, replaced: &Dependant) -> Option<Timestamp> {
        let arrives = |entry: &&TimelineEntry| match &entry.fact {
            Fact::Arrival { name, against } => *name == replaced.name && *against == replaced.version,
            _ => false,
        };
        let arrivals = self.entries.iter().filter(arrives);
        arrivals.map(|entry| entry.at).max()
    }

    /// A dependant as it was at a moment.
    fn seen(&self, name: &str, at: Timestamp) -> Option<&'a Dependant> {
        let seen = self.entries.iter().filter(|entry| entry.at <= at);
        let versions = seen.filter_map(|entry| match &entry.fact {
            Fact::Dependant(dependant) if dependant.name == name => Some(dependant),
            _ => None,
        });
        versions.max_by_key(|dependant| dependant.version)
    }

    /// S4.
    fn cluster_allows(&mut self, now: &Dependant, at: Timestamp) {
        let states = self.entries.iter().filter_map(|entry| match entry.fact {
            Fact::Cluster { version, forbids } => Some((version, forbids, entry.at)),
            _ => None,
        });
        let mut states: Vec<_> = states.filter(|(version, ..)| *version < now.version).collect();
        states.sort_by_key(|(version, ..)| *version);
        // Since when it has been forbidden without a break.
        let mut since = None;
        for (_, forbids, when) in states {
            since = forbids.map(|why| since.unwrap_or((why, when)));
        }
        if let Some((why, when)) = since
            && at.duration_since(when) > IN_FLIGHT
        {
            self.add(
                Invariant::S4,
                now,
                at,
                &format!("was written to while the shoot is {why}"),
            );
        }
    }

    /// S6 at the end.
    fn check_end(&mut self) {
        for (name, count) in &self.expected.counts {
            match self.state.get(name) {
                Some(last) if last.wanted == *count && last.ready == *count && !last.held => {}
                last => self.violations.push(Violation {
                    invariant: Invariant::S6,
                    shoot: self.shoot.to_owned(),
                    what: format!("{name} is not at {count} at the end: {last:?}"),
                    at: None,
                }),
            }
        }
    }

    fn count(&self, name: &str) -> Option<i32> {
        let mut counts = self.expected.counts.iter();
        counts.find(|(of, _)| *of == name).map(|(_, count)| *count)
    }

    fn add(&mut self, invariant: Invariant, now: &Dependant, at: Timestamp, what: &str) {
        self.violations.push(Violation {
            invariant,
            shoot: self.shoot.to_owned(),
            what: format!("{} {what} (version {})", now.name, now.version),
            at: Some(at),
        });
    }
}

fn is_loss(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::LeasesExpired | Outcome::ExternalUnreachable)
}

#[cfg(test)]
mod tests;
