//! One probe after the other of one shoot: what is remembered between them, and when the nodes matter.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::assessment::{Assessment, Leases, Rule, assess};
use super::candidates::{Exclusion, Roster};
use super::moment::Moment;
use super::renewals::{Listing, Renewals};
use super::schedule::MIN_SPACING;

/// What was found out about excluded leases is believed for so long: one orphaned lease must not make every probe
/// list all nodes, and a node that counts again must not be overlooked for long.
const REMEMBER: Duration = Duration::from_secs(120);

/// Why leases were excluded when the nodes were last listed.
#[derive(Debug, Clone)]
struct Remembered {
    excluded: HashMap<Arc<str>, Exclusion>,
    as_of: Moment,
}

/// What is remembered between two probes of a shoot.
#[derive(Debug, Clone, Default)]
pub struct ProbeState {
    renewals: Renewals,
    remembered: Option<Remembered>,
}

/// What follows from a list of leases.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// No lease is expired or about to, or it is known why those that are do not count: the nodes do not matter.
    Done(Assessment),
    /// The nodes and machines must be listed; then [`ProbeState::judge`].
    ListNodes,
}

impl ProbeState {
    /// Takes in a complete list of the leases and judges them as of when it was asked for: a lease that expired since
    /// then may have been renewed in the meantime.
    pub fn leases(&mut self, listing: Listing, listed: &Leases, rule: Rule) -> Next {
        self.renewals.observe(listing, &listed.leases);
        let now = listing.sent;
        self.remembered
            .take_if(|remembered| now.since(remembered.as_of) >= REMEMBER);
        let known = |lease: &str| self.remembered.as_ref()?.excluded.get(lease).copied();
        let mut assessment = assess(listed, &self.renewals, known, None, rule, now);
        // One that is about to expire matters as well: to be on time at the crossing one must know when it is.
        let soon = now.after(MIN_SPACING);
        let imminent = assessment.next_expiry.is_some_and(|expiry| expiry < soon);
        if imminent || assessment.evidence.expired > 0 || assessment.evidence.unconfirmed > 0 {
            return Next::ListNodes;
        }
        // How many leases count is not known exactly, so neither is the crossing: it cannot come before the first
        // expiry, and then the nodes are listed.
        assessment.crossing = assessment.next_expiry;
        Next::Done(assessment)
    }

    /// Judges the leases of the last list with the nodes and machines listed after it, as of the same moment `now`,
    /// however long that took.
    pub fn judge(&mut self, listed: &Leases, roster: &Roster, rule: Rule, now: Moment) -> Assessment {
        let excluded = listed.leases.iter().filter_map(|lease| {
            let exclusion = roster.exclusion(&lease.name)?;
            Some((lease.name.clone(), exclusion))
        });
        self.remembered = Some(Remembered {
            excluded: excluded.collect(),
            as_of: now,
        });
        assess(
            listed,
            &self.renewals,
            |lease| roster.exclusion(lease),
            Some(roster),
            rule,
            now,
        )
    }

    /// The API server did not answer as it should.
    pub fn interrupt(&mut self) {
        self.renewals.interrupt();
    }

    /// The rule for candidates has changed: what was found out before says nothing any more.
    pub fn forget_exclusions(&mut self) {
        self.remembered = None;
    }

    /// The pace at which live kubelets of this shoot renew.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.renewals.shortest_interval()
    }
}

#[cfg(test)]
mod tests {
    use watchdog_api::eligibility::ShootSettings;
    use watchdog_api::machine::{MachineItem, MachinePhase};
    use watchdog_api::node::NodeItem;

    use super::super::outcome::Outcome;
    use super::super::renewals::ListedLease;
    use super::*;

    const RULE: Rule = Rule {
        expiry_age: Duration::from_secs(30),
        threshold: 0.6,
    };

    fn at(seconds: i64) -> Moment {
        Moment(seconds * 1_000_000)
    }

    fn listed(renewed: &[i64]) -> Leases {
        let lease = |(i, t): (usize, &i64)| ListedLease {
            name: format!("n{i}").into(),
            renew_time: Some(at(*t)),
            duration_seconds: Some(40),
        };
        Leases {
            leases: renewed.iter().enumerate().map(lease).collect(),
            malformed: 0,
        }
    }

    fn listing(seconds: i64) -> Listing {
        Listing {
            sent: at(seconds),
            received: at(seconds),
        }
    }

    fn roster(nodes: &[&str]) -> Roster {
        let node = |name: &&str| NodeItem {
            name: (*name).into(),
            pool: None,
            zone: Some("z".into()),
            not_managed_by_mcm: false,
            conditions: vec![],
        };
        let machine = |name: &&str| MachineItem {
            name: (*name).into(),
            node: Some((*name).into()),
            phase: MachinePhase::Other,
        };
        let nodes_of: Vec<_> = nodes.iter().map(node).collect();
        let machines: Vec<_> = nodes.iter().map(machine).collect();
        Roster::new(&nodes_of, &machines, &ShootSettings::default())
    }

    #[test]
    fn a_healthy_probe_needs_no_nodes() {
        let mut state = ProbeState::default();
        let Next::Done(assessment) = state.leases(listing(5), &listed(&[0, 1, 2]), RULE) else {
            panic!("asked for the nodes")
        };
        assert_eq!(assessment.outcome, Outcome::Healthy);
        assert_eq!(
            assessment.crossing,
            Some(at(30)),
            "looks again when the first lease would expire"
        );
    }

    /// Its age is that of the moment at which the list was asked for: since then it may have been renewed.
    #[test]
    fn an_answer_that_takes_long_makes_no_lease_older() {
        let mut state = ProbeState::default();
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        let slow = Listing {
            sent: at(15),
            received: at(44),
        };
        let Next::Done(assessment) = state.leases(slow, &listed(&[12, 13, 14]), RULE) else {
            panic!("asked for the nodes")
        };
        assert_eq!(assessment.outcome, Outcome::Healthy);
        assert_eq!((assessment.judged, assessment.crossing), (at(15), Some(at(42))));
    }

    #[test]
    fn a_lease_about_to_expire_is_looked_at_closely() {
        let mut state = ProbeState::default();
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        let almost = Listing {
            sent: at(29).shifted(1),
            received: at(29).shifted(1),
        };
        let leases = listed(&[0, 21, 22]);
        assert_eq!(state.leases(almost, &leases, RULE), Next::ListNodes);
        let judged = state.judge(&leases, &roster(&["n0", "n1", "n2"]), RULE, almost.sent);
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.crossing, Some(at(51)), "the second of three");
    }

    #[test]
    fn an_orphaned_lease_makes_one_probe_expensive_not_all() {
        let mut state = ProbeState::default();
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        let later = listed(&[0, 31, 32]);
        assert_eq!(state.leases(listing(35), &later, RULE), Next::ListNodes);
        let judged = state.judge(&later, &roster(&["n1", "n2"]), RULE, at(35));
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.evidence.excluded, [(Exclusion::NoNode, 1)].into());
        let Next::Done(next) = state.leases(listing(45), &listed(&[0, 41, 42]), RULE) else {
            panic!("forgot what it had found out")
        };
        assert_eq!(next.evidence.excluded, [(Exclusion::NoNode, 1)].into());
        // But not for ever.
        assert_eq!(
            state.leases(listing(160), &listed(&[0, 151, 152]), RULE),
            Next::ListNodes
        );
    }

    #[test]
    fn a_new_expiry_lists_the_nodes_again() {
        let mut state = ProbeState::default();
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        let later = listed(&[0, 31, 32]);
        state.leases(listing(35), &later, RULE);
        state.judge(&later, &roster(&["n1", "n2"]), RULE, at(35));
        let lost = listed(&[0, 31, 32]);
        assert_eq!(state.leases(listing(65), &lost, RULE), Next::ListNodes);
        let judged = state.judge(&lost, &roster(&["n0", "n1", "n2"]), RULE, at(65));
        assert_eq!(judged.outcome, Outcome::LeasesExpired);
        assert_eq!(
            judged.evidence.zones.get("z").map(|z| (z.candidates, z.expired)),
            Some((3, 3))
        );
    }
}
