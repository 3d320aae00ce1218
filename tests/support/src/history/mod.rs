//! Judges the coordinators by what an API server recorded of them: who wrote what, when.
//!
//! Every replica has credentials of its own, its user is its identity; so the record names the author of every write.
//! The membership Leases are in the same record, in the same order: they say what each replica claimed when it wrote.
//!
//! # What is meant by "at most one acts on a shoot at any time"
//!
//! - An *action* on a shoot is a request that would change one of its resources, from its arrival at the API server to
//!   its end, whether or not it was granted.
//! - A *claim* of a replica is the time between two changes of what its own membership Lease says: its session and
//!   whom it considers live. Ownership of a shoot changes hands only where a claim ends.
//! - The *interval of action* of a claim on a shoot reaches from its first action on it to its last.
//!
//! Then, for every shoot:
//!
//! 1. intervals of action of different replicas do not overlap ([`Violation::Overlap`]);
//! 2. a replica that acts holds its membership Lease, renewed less than [`FOREIGN`] ago ([`Violation::NoLease`]);
//! 3. where another replica goes on, the one before has let go, and the record shows how: it released its Lease, or it
//!    ended its claim and acknowledged the session of the other, or it had not renewed for [`FOREIGN`]
//!    ([`Violation::NotHandedOver`]);
//! 4. the levels keep their order through all of that ([`Violation::Order`]);
//! 5. no write records a count that is not the one from before the incident ([`Violation::Count`]).

mod claims;
mod dependants;
pub mod invariants;
mod sources;
#[cfg(test)]
mod tests;
pub mod timeline;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use self::claims::Claims;
pub use self::sources::{from_audit_log, from_sandbox};

/// For so long, at the least, others count a membership Lease as live that is not renewed: 18 s
/// (`Timing::PRODUCTION.foreign`) by a clock that runs 10 % fast. A holder whose clock is as slow stops after 15 s.
pub const FOREIGN: Duration = Duration::from_millis(16_360);

/// A request that was to change something, as the API server recorded it.
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

/// A breach of one of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Rule 1.
    Overlap {
        /// The shoot.
        shoot: String,
        /// The replica that acted on it.
        replicas: [String; 2],
        /// When the later of the two began.
        at: Timestamp,
    },
    /// Rule 2.
    NoLease {
        /// The shoot.
        shoot: String,
        /// The replica that acted on it.
        replica: String,
        /// When.
        at: Timestamp,
        /// Its Lease as recorded.
        why: String,
    },
    /// Rule 3.
    NotHandedOver {
        /// The shoot.
        shoot: String,
        /// The replica that acted before, and the one that continued.
        replicas: [String; 2],
        /// When the second went on.
        at: Timestamp,
    },
    /// Rule 4.
    Order {
        /// The shoot.
        shoot: String,
        /// The write that came too early.
        what: String,
        /// When.
        at: Timestamp,
    },
    /// Rule 5.
    Count {
        /// The shoot.
        shoot: String,
        /// The resource, and the count that was recorded.
        what: String,
        /// When.
        at: Timestamp,
    },
}

/// How shoots changed hands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Handovers {
    /// After the one before had released its Lease.
    pub released: usize,
    /// After the one before had acknowledged the other.
    pub acknowledged: usize,
    /// After the one before had not renewed for [`FOREIGN`].
    pub expired: usize,
}

/// The result of checking a history.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Actions on shoots, by replica.
    pub actions: BTreeMap<String, usize>,
    /// How shoots changed hands.
    pub handovers: Handovers,
    /// The violations.
    pub violations: Vec<Violation>,
}

/// Resources of a shoot with their replicas in a healthy control plane.
pub type Counts<'a> = &'a [(&'a str, u32)];

/// The content of a record.
#[derive(Debug)]
pub struct History {
    /// By arrival.
    writes: Vec<Write>,
    claims: Claims,
}

/// An action on a shoot, with the claim under which it was done.
#[derive(Debug, Clone)]
struct Action<'a> {
    write: &'a Write,
    claim: Option<usize>,
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

    /// Judges everything in it. Shoots have the resources `counts`, kube-controller-manager, the first, is the one that
    /// goes down last and comes up first, and the others follow in order.
    #[must_use]
    pub fn judge(&self, counts: Counts<'_>) -> Report {
        let mut report = Report::default();
        let mut by_shoot: BTreeMap<&str, Vec<Action<'_>>> = BTreeMap::new();
        for write in &self.writes {
            let Some(shoot) = shoot_of(&write.path) else {
                continue;
            };
            *report.actions.entry(write.author.clone()).or_default() += 1;
            let claim = self.claims.current(&write.author, write.at);
            by_shoot.entry(shoot).or_default().push(Action { write, claim });
        }
        for (shoot, actions) in &by_shoot {
            self.leases(shoot, actions, &mut report);
            self.handovers(shoot, actions, &mut report);
            overlaps(shoot, actions, &mut report);
            dependants::judge(shoot, actions.iter().map(|a| a.write), counts, &mut report);
        }
        report
    }

    fn leases(&self, shoot: &str, actions: &[Action<'_>], report: &mut Report) {
        for Action { write, .. } in actions {
            if let Err(why) = self.claims.is_held(&write.author, write.at) {
                report.violations.push(Violation::NoLease {
                    shoot: shoot.to_owned(),
                    replica: write.author.clone(),
                    at: write.at,
                    why,
                });
            }
        }
    }

    fn handovers(&self, shoot: &str, actions: &[Action<'_>], report: &mut Report) {
        for pair in actions.windows(2) {
            let [before, after] = pair else { continue };
            let (from, to) = (&before.write.author, &after.write.author);
            if from == to {
                continue;
            }
            match self.claims.let_go((from, before.claim), to, after.write.at) {
                Some(claims::LetGo::Released) => report.handovers.released += 1,
                Some(claims::LetGo::Acknowledged) => report.handovers.acknowledged += 1,
                Some(claims::LetGo::Expired) => report.handovers.expired += 1,
                None => report.violations.push(Violation::NotHandedOver {
                    shoot: shoot.to_owned(),
                    replicas: [from.clone(), to.clone()],
                    at: after.write.at,
                }),
            }
        }
    }
}

/// Intervals of action that overlap.
fn overlaps(shoot: &str, actions: &[Action<'_>], report: &mut Report) {
    let mut intervals: BTreeMap<(&str, Option<usize>), (Timestamp, Timestamp)> = BTreeMap::new();
    for Action { write, claim } in actions {
        let interval = intervals
            .entry((&write.author, *claim))
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
            report.violations.push(Violation::Overlap {
                shoot: shoot.to_owned(),
                replicas: [other.to_owned(), author.to_owned()],
                at: begin,
            });
        }
        if latest.is_none_or(|(until, _)| end > until) {
            latest = Some((end, author));
        }
    }
}

/// The shoot whose resource a path names; none for anything else. Kubernetes Events are no actions.
fn shoot_of(path: &str) -> Option<&str> {
    let (_, rest) = path.strip_prefix("/apis/apps/v1")?.split_once("/namespaces/")?;
    rest.split('/').next()
}

impl Report {
    /// Everything about it that a person wants to see when it is not as it should be.
    ///
    /// # Errors
    /// When there is a violation.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.violations.is_empty(), "{self}");
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "actions {:?}, {:?}", self.actions, self.handovers)?;
        for violation in &self.violations {
            write!(f, "\n  {violation:?}")?;
        }
        Ok(())
    }
}
