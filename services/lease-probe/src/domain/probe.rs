//! One probe after the other of one shoot: what is remembered between them, and when the nodes matter.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::assessment::{Assessment, Leases, LookAhead, Rule, assess};
use super::candidates::{Exclusion, Roster};
use super::moment::Moment;
use super::renewals::{Listing, Renewals};
use super::schedule::MIN_SPACING;

/// What was found out about excluded leases is believed for so long: one orphaned lease must not make every probe
/// list all nodes, and a node that counts again must not be overlooked for long.
const REMEMBER: Duration = Duration::from_secs(120);

/// Nodes and machines that were listed at most so many renew intervals ago are good enough to turn a verdict with. What
/// explains a silent kubelet (a machine that is deleted, an update in place) stands there before the kubelet falls
/// silent, and whoever is expired has been silent for longer than this.
const FRESH: f64 = 1.25;

/// And so many are good enough for a verdict that does not turn into a loss: neither an expired lease that does not
/// matter nor a loss that stands costs a list of all nodes, and of the machines on the seed, with every probe.
const GOOD_ENOUGH: f64 = 3.0;

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
    // As of `remembered`; only while something is suspicious.
    roster: Option<Roster>,
}

/// What follows from a list of leases.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// No lease is expired or about to, or enough is known of the nodes: they need not be listed.
    Done(Assessment),
    /// The nodes and machines must be listed; then [`ProbeState::judge`].
    ListNodes,
    /// Nothing is expired, but a loss is near: the nodes and machines are to be listed now, then [`ProbeState::judge`],
    /// so that it can be told at once when it comes. Should that fail, this holds.
    Ahead(Assessment),
}

impl ProbeState {
    /// Takes in a complete list of the leases and judges them as of when it was asked for: a lease that expired since
    /// then may have been renewed in the meantime. `lost` says whether a loss is told already.
    pub fn leases(&mut self, listing: Listing, listed: &Leases, rule: Rule, lost: bool) -> Next {
        self.renewals.observe(listing, &listed.leases);
        let now = listing.sent;
        self.remembered
            .take_if(|remembered| now.since(remembered.as_of) >= REMEMBER);
        let known = |lease: &str| self.remembered.as_ref()?.excluded.get(lease).copied();
        let mut assessment = assess(listed, &self.renewals, known, None, rule, now);
        // One that is about to expire matters as well: to be on time at the crossing one must know when it is.
        let soon = now.after(MIN_SPACING);
        let imminent = assessment.next_expiry.is_some_and(|expiry| expiry < soon);
        let window = self.window(rule);
        let ahead = assessment
            .crossing
            .is_some_and(|crossing| crossing <= now.after(window));
        let suspicious = imminent || assessment.evidence.expired > 0 || assessment.evidence.unconfirmed > 0;
        if !suspicious && !ahead {
            self.roster = None;
            assessment.look_ahead = assessment.crossing.map(|crossing| LookAhead { crossing, window });
        }
        // How many leases count is not known exactly, so neither is the crossing: it cannot come before the first
        // expiry, and then the nodes are listed.
        assessment.crossing = assessment.next_expiry;
        match self.by_roster(listed, rule, now, lost) {
            Some(judged) => Next::Done(judged),
            None if suspicious => Next::ListNodes,
            None if ahead => Next::Ahead(assessment),
            None => Next::Done(assessment),
        }
    }

    /// What follows with the nodes and machines as they were listed last; none when that was too long ago, or when there
    /// are leases now that there were not then: their nodes have joined since.
    fn by_roster(&self, listed: &Leases, rule: Rule, now: Moment, lost: bool) -> Option<Assessment> {
        let (roster, remembered) = (self.roster.as_ref()?, self.remembered.as_ref()?);
        let age = now.since(remembered.as_of);
        let within = |intervals: f64| age <= self.renew_interval().mul_f64(intervals);
        let covered = |lease: &str| roster.knows(lease) || remembered.excluded.contains_key(lease);
        if !within(GOOD_ENOUGH) || !listed.leases.iter().all(|lease| covered(&lease.name)) {
            return None;
        }
        let excluded = |lease: &str| roster.exclusion(lease);
        let judged = assess(listed, &self.renewals, excluded, Some(roster), rule, now);
        let turns = judged.outcome.is_loss() && !lost;
        (!turns || within(FRESH)).then_some(judged)
    }

    /// How long before a crossing the nodes may be listed: so long that listing them for all shoots of a seed can be
    /// spread, and not so long that a kubelet which is merely late looks lost. A live one renews every interval.
    fn window(&self, rule: Rule) -> Duration {
        let interval = self.renew_interval();
        interval.min(rule.expiry_age.saturating_sub(interval) / 2)
    }

    /// Judges the leases of the last list with the nodes and machines listed after it, as of the same moment `now`,
    /// however long that took.
    pub fn judge(&mut self, listed: &Leases, roster: Roster, rule: Rule, now: Moment) -> Assessment {
        let excluded = listed.leases.iter().filter_map(|lease| {
            let exclusion = roster.exclusion(&lease.name)?;
            Some((lease.name.clone(), exclusion))
        });
        self.remembered = Some(Remembered {
            excluded: excluded.collect(),
            as_of: now,
        });
        let assessment = assess(
            listed,
            &self.renewals,
            |lease| roster.exclusion(lease),
            Some(&roster),
            rule,
            now,
        );
        self.roster = Some(roster);
        assessment
    }

    /// The API server did not answer as it should.
    pub fn interrupt(&mut self) {
        self.renewals.interrupt();
    }

    /// The rule for candidates has changed: what was found out before says nothing any more.
    pub fn forget_exclusions(&mut self) {
        self.remembered = None;
        self.roster = None;
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
        let Next::Done(assessment) = state.leases(listing(5), &listed(&[0, 1, 2]), RULE, false) else {
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
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE, false);
        let slow = Listing {
            sent: at(15),
            received: at(44),
        };
        let Next::Done(assessment) = state.leases(slow, &listed(&[12, 13, 14]), RULE, false) else {
            panic!("asked for the nodes")
        };
        assert_eq!(assessment.outcome, Outcome::Healthy);
        assert_eq!((assessment.judged, assessment.crossing), (at(15), Some(at(42))));
    }

    #[test]
    fn a_lease_about_to_expire_is_looked_at_closely() {
        let mut state = ProbeState::default();
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE, false);
        let almost = Listing {
            sent: at(29).shifted(1),
            received: at(29).shifted(1),
        };
        let leases = listed(&[0, 21, 22]);
        assert_eq!(state.leases(almost, &leases, RULE, false), Next::ListNodes);
        let judged = state.judge(&leases, roster(&["n0", "n1", "n2"]), RULE, almost.sent);
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.crossing, Some(at(51)), "the second of three");
    }

    #[test]
    fn an_orphaned_lease_makes_one_probe_expensive_not_all() {
        let mut state = ProbeState::default();
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE, false);
        let later = listed(&[0, 31, 32]);
        assert_eq!(state.leases(listing(35), &later, RULE, false), Next::ListNodes);
        let judged = state.judge(&later, roster(&["n1", "n2"]), RULE, at(35));
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.evidence.excluded, [(Exclusion::NoNode, 1)].into());
        let Next::Done(next) = state.leases(listing(45), &listed(&[0, 41, 42]), RULE, false) else {
            panic!("forgot what it had found out")
        };
        assert_eq!(next.evidence.excluded, [(Exclusion::NoNode, 1)].into());
        // But not for ever.
        assert_eq!(
            state.leases(listing(160), &listed(&[0, 151, 152]), RULE, false),
            Next::ListNodes
        );
    }

    #[test]
    fn a_new_expiry_lists_the_nodes_again() {
        let mut state = ProbeState::default();
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE, false);
        let later = listed(&[0, 31, 32]);
        state.leases(listing(35), &later, RULE, false);
        state.judge(&later, roster(&["n1", "n2"]), RULE, at(35));
        let lost = listed(&[0, 31, 32]);
        assert_eq!(state.leases(listing(65), &lost, RULE, false), Next::ListNodes);
        let judged = state.judge(&lost, roster(&["n0", "n1", "n2"]), RULE, at(65));
        assert_eq!(judged.outcome, Outcome::LeasesExpired);
        assert_eq!(
            judged.evidence.zones.get("z").map(|z| (z.candidates, z.expired)),
            Some((3, 3))
        );
    }

    const ALL: [&str; 3] = ["n0", "n1", "n2"];

    fn judged(state: &mut ProbeState, listed: &Leases, seconds: i64) {
        state.judge(listed, roster(&ALL), RULE, at(seconds));
    }

    fn done(next: Next) -> Outcome {
        match next {
            Next::Done(assessment) => assessment.outcome,
            next => panic!("not done: {next:?}"),
        }
    }

    #[test]
    fn the_nodes_are_listed_ahead_of_a_loss() {
        let mut state = ProbeState::default();
        let leases = listed(&[0, 1, 2]);
        let Next::Done(healthy) = state.leases(listing(5), &leases, RULE, false) else {
            panic!("not done")
        };
        let ahead = healthy.look_ahead.unwrap();
        // Two of three leases make a loss; two renew intervals without a renewal make it near.
        assert_eq!((ahead.crossing, ahead.window), (at(31), Duration::from_secs(10)));
        let Next::Ahead(near) = state.leases(listing(21), &leases, RULE, false) else {
            panic!("did not look ahead")
        };
        assert_eq!((near.outcome, near.crossing), (Outcome::Healthy, Some(at(30))));
        judged(&mut state, &leases, 21);
        // Known now: neither shortly before nor at the crossing are they listed again.
        let Next::Done(known) = state.leases(listing(25), &leases, RULE, false) else {
            panic!("asked again")
        };
        assert_eq!(known.crossing, Some(at(31)));
        assert_eq!(
            done(state.leases(listing(31), &leases, RULE, false)),
            Outcome::LeasesExpired
        );
    }

    #[test]
    fn a_verdict_turns_only_on_nodes_listed_lately() {
        let mut state = ProbeState::default();
        let leases = listed(&[0, 1, 2]);
        state.leases(listing(5), &leases, RULE, false);
        judged(&mut state, &leases, 19);
        assert_eq!(state.leases(listing(32), &leases, RULE, false), Next::ListNodes);
        assert_eq!(
            done(state.leases(listing(32), &leases, RULE, true)),
            Outcome::LeasesExpired,
            "it stands"
        );
        assert_eq!(
            state.leases(listing(50), &leases, RULE, true),
            Next::ListNodes,
            "but not for ever"
        );
        judged(&mut state, &leases, 50);
        let back = listed(&[0, 51, 52]);
        assert_eq!(
            done(state.leases(listing(53), &back, RULE, true)),
            Outcome::Healthy
        );
    }

    #[test]
    fn a_lease_that_was_not_there_makes_the_nodes_listed_again() {
        let mut state = ProbeState::default();
        let leases = listed(&[0, 1, 2]);
        state.leases(listing(5), &leases, RULE, false);
        judged(&mut state, &leases, 29);
        assert_eq!(
            state.leases(listing(31), &listed(&[0, 1, 2, 30]), RULE, false),
            Next::ListNodes
        );
    }

    #[test]
    fn looking_ahead_never_takes_a_kubelet_on_time_for_lost() {
        // A grace period that is hardly longer than the renew interval.
        let rule = Rule {
            expiry_age: Duration::from_secs(12),
            threshold: 0.6,
        };
        let mut state = ProbeState::default();
        let leases = listed(&[0, 0, 0]);
        state.leases(listing(1), &leases, rule, false);
        assert_eq!(
            done(state.leases(listing(10), &leases, rule, false)),
            Outcome::Healthy
        );
    }
}
