//! The state kept between two probes of a shoot, and the rule for when the nodes must be listed.

use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::answered::{AnsweredTime, RENEWS_WITHIN_INTERVALS};
use super::assessment::{Assessment, ExpiryRule, ExternalOutage, assess, required};
use super::candidates::{Exclusion, NodeIndex};
use super::lease_list::{LeaseList, MIN_SPACING};
use super::outcome::Outcome;
use super::renewals::{Renewals, longest_pause};

/// Nodes and Machines of this age are good enough for a verdict that is not a new loss. Otherwise an expired lease that
/// does not matter, or a standing loss, would cost a list of all nodes and Machines with every probe.
const GOOD_ENOUGH: f64 = 3.0;

/// Nodes and machines are listed at most this many renew intervals ahead of a crossing, so that they are still
/// fresh when it comes, also if it turns out to be a second later.
const LONGEST_LEAD: f64 = 1.1;

/// Each shoot has a moment of its own in this first part of the time ahead of a crossing, so that the shoots of a seed
/// that are lost at once do not all list their nodes at once. The rest, 6 s by default, is for a list that takes long,
/// and for most of the pause after a 429.
const SPREAD: f64 = 0.45;

/// A loss rests on a list of leases that is no older than this when it is reported: its answer may have been held up,
/// lists of nodes and machines may take long, and the leases may be renewed meanwhile.
const STALE_LIST: Duration = Duration::from_secs(2);

/// The state kept between two probes of a shoot.
#[derive(Debug, Clone)]
pub struct ProbeState {
    renewals: Renewals,
    // Only while something is suspicious; and when they were asked for, or just before.
    nodes: Option<NodeIndex>,
    nodes_as_of: UnixTime,
    // The last verdict that settled whether the nodes are connected; pending while another replica may have reported a
    // loss.
    settled: Outcome,
    external: Option<ExternalOutage>,
    // The shoot's place in `SPREAD`, from 0 to 1.
    place: f64,
}

/// The next step after a list of the leases.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeStep {
    /// No lease is expired or about to, or enough is known of the nodes: they need not be listed.
    Done(Assessment),
    /// The leases that are there show the nodes connected, but this replica has seen no others that could be missing.
    /// If there are more nodes than renewed leases, list the nodes and machines, then [`ProbeState::judge`]; else this
    /// holds.
    CountNodes(Assessment),
    /// The nodes and machines must be listed; then [`ProbeState::judge`]. An assessment holds if that fails: nothing is
    /// expired yet, but a loss is near, and must be reported at once when it comes.
    ListNodes(Option<Assessment>),
}

impl ProbeState {
    /// Nothing is known yet. `place`, from 0 to 1, is the shoot's among those that are lost at once.
    #[must_use]
    pub fn at_place(place: f64) -> Self {
        Self {
            renewals: Renewals::default(),
            nodes: None,
            nodes_as_of: UnixTime::default(),
            settled: Outcome::Pending,
            external: None,
            place: place.clamp(0.0, 1.0),
        }
    }

    /// Forgets everything about the shoot.
    pub fn forget(&mut self) {
        *self = Self::at_place(self.place);
    }

    /// Takes in a complete list of the leases and judges them. `is_again` is true if they are listed once more because
    /// their list was old: nodes and machines are good enough for a loss if they were asked for after the kubelets had
    /// missed a renewal.
    pub fn leases(&mut self, list: &LeaseList, rule: ExpiryRule, is_again: bool) -> ProbeStep {
        self.renewals.observe(list, longest_pause(rule.grace));
        let now = list.sent;
        let mut assessment = self.assess(list, None, rule);
        // A lease about to expire also counts: probing exactly at the crossing requires knowing when the crossing is.
        let soon = now.after(MIN_SPACING);
        let imminent = assessment.next_expiry.is_some_and(|expiry| expiry < soon);
        let look_ahead = self.look_ahead(&assessment);
        let ahead = look_ahead.is_some_and(|at| at <= now);
        // Leases that look renewed make no start of a replica list all nodes: their renewals are waited for.
        let suspicious = imminent
            || assessment.expired > 0
            || assessment.unconfirmed > assessment.undated
            || assessment.renewing + assessment.undated == 0;
        if !suspicious && !ahead {
            self.nodes = None;
            assessment.look_ahead = look_ahead;
        }
        // How many leases count is not known exactly, so neither is the crossing: it cannot come before the first
        // expiry, and then the nodes are listed.
        let exact = assessment.crossing.filter(|_| self.external.is_some());
        assessment.crossing = [exact, assessment.next_expiry].into_iter().flatten().min();
        match self.by_nodes(list, rule, is_again, assessment.urgent) {
            Some(judged) => ProbeStep::Done(judged),
            None if suspicious || assessment.outcome.is_loss() => ProbeStep::ListNodes(None),
            None if self.settled == Outcome::Pending && assessment.outcome == Outcome::Healthy => {
                ProbeStep::CountNodes(assessment)
            }
            None if ahead => ProbeStep::ListNodes(Some(assessment)),
            None => ProbeStep::Done(assessment),
        }
    }

    fn assess(&self, list: &LeaseList, nodes: Option<&NodeIndex>, rule: ExpiryRule) -> Assessment {
        let loss_may_stand = self.settled != Outcome::Healthy;
        assess(list, &self.renewals, nodes, rule, loss_may_stand, self.external)
    }

    /// Assesses the leases with the last list of the nodes and machines. Returns none if that list is too old, or if
    /// there are leases that it does not cover, because their nodes joined later. `urgent` is set if enough leases for
    /// a loss are silent, whether they count or not.
    fn by_nodes(
        &self,
        list: &LeaseList,
        rule: ExpiryRule,
        is_again: bool,
        urgent: bool,
    ) -> Option<Assessment> {
        let nodes = self.nodes.as_ref()?;
        let (age, interval) = (list.sent.since(self.nodes_as_of), self.renew_interval());
        let is_new = |name: &str| !nodes.knows(name) && self.renewals.is_newer_than(name, self.nodes_as_of);
        if age > interval.mul_f64(GOOD_ENOUGH) || list.leases.iter().any(|lease| is_new(&lease.name)) {
            return None;
        }
        let judged = self.assess(list, Some(nodes), rule);
        // Nor is a shoot called healthy by old nodes while its kubelets are silent, or where one node less makes a
        // loss: the reason why some do not count may be over, or one more may have one.
        let required = required(judged.candidates.saturating_sub(1), rule.threshold);
        let is_near = urgent || judged.urgent || judged.expired >= required;
        let is_doubtful = judged.outcome == Outcome::Healthy && is_near;
        let turns = is_doubtful || judged.outcome.is_loss() && !self.settled.is_loss();
        // The reason why a kubelet is silent, such as a Machine that is deleted or an update in place, shows in them
        // before the kubelet falls silent, and an expired lease has been silent for longer than this. But a reason that
        // is over since does not show, and an external endpoint that is away makes silence count that is hardly older.
        let fresh = match is_again {
            true => rule.expiry_age.saturating_sub(interval),
            false => interval.mul_f64(RENEWS_WITHIN_INTERVALS),
        };
        (!turns || age <= fresh).then_some(judged)
    }

    /// When to list the nodes ahead of a crossing: early enough that listing them for all shoots of a seed can be
    /// spread, and not so early that a kubelet which is merely late looks lost. A live one renews every interval.
    fn look_ahead(&self, found: &Assessment) -> Option<UnixTime> {
        let (crossing, interval) = (found.crossing?, found.renew_interval);
        let longest = found.rule.expiry_age.saturating_sub(interval) / 2;
        let lead = interval.mul_f64(LONGEST_LEAD).min(longest);
        let earliest = crossing.before(lead);
        let spread = crossing.before(lead.mul_f64(1.0 - SPREAD));
        // Not only when the first lease is about to expire: that is a probe on a tick that many shoots share.
        let imminent = found.next_expiry.map(|expiry| expiry.before(MIN_SPACING));
        let latest = imminent
            .map_or(spread, |imminent| imminent.min(spread))
            .max(earliest);
        Some(earliest.after(latest.since(earliest).mul_f64(self.place)))
    }

    /// Judges the leases of the last list with the nodes and machines listed after it, as of the same moment, however
    /// long that took.
    pub fn judge(&mut self, list: &LeaseList, nodes: NodeIndex, rule: ExpiryRule) -> Assessment {
        // A node that is gone with its Machine is gone on purpose.
        let is_gone = |lease: &str| nodes.exclusion(lease) == Some(Exclusion::NoNode);
        self.renewals.forget_missing(is_gone);
        let assessment = self.assess(list, Some(&nodes), rule);
        (self.nodes, self.nodes_as_of) = (Some(nodes), list.sent);
        assessment
    }

    /// The answered time of the API server, to note what suggests that it did not answer.
    pub const fn answered_mut(&mut self) -> &mut AnsweredTime {
        self.renewals.answered_mut()
    }

    /// Returns false for a loss if the leases may have been renewed since `list`, the last one. An API server that
    /// always takes its time is no reason for that: another list would take as long.
    #[must_use]
    pub fn is_recent(&self, list: &LeaseList, found: &Assessment, now: UnixTime) -> bool {
        let as_of = if self.renewals.was_held_up() {
            list.sent
        } else {
            list.received
        };
        !found.outcome.is_loss() || now.since(as_of) <= STALE_LIST
    }

    /// The external endpoint did or did not answer while the leases were listed at `now`; `threshold` is
    /// `failureThreshold`.
    pub fn note_external(&mut self, answered: bool, threshold: u32, now: UnixTime) {
        if answered {
            self.external = None;
            return;
        }
        let outage = self.external.get_or_insert(ExternalOutage {
            since: now,
            mark: self.renewals.answered().now(),
            failures: 0,
            counts: false,
        });
        outage.failures = outage.failures.saturating_add(1);
        outage.counts = outage.failures >= threshold;
    }

    /// A verdict was reported.
    pub fn reported(&mut self, outcome: &Outcome) {
        if *outcome == Outcome::Healthy || outcome.is_loss() {
            self.settled = outcome.clone();
        }
    }

    /// The rule for candidates has changed: the nodes must be listed again.
    pub fn forget_nodes(&mut self) {
        self.nodes = None;
    }

    /// Leases, or nodes if those are more, that take memory: also those that the last list does not have.
    #[must_use]
    pub fn remembered(&self) -> usize {
        let nodes = self.nodes.as_ref().map_or(0, NodeIndex::remembered);
        self.renewals.remembered().max(nodes)
    }

    /// The pace at which live kubelets of this shoot renew.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.renewals.renew_interval()
    }
}

#[cfg(test)]
mod tests {
    use watchdog_api::eligibility::ShootSettings;
    use watchdog_api::machine::MachinePhase;

    use super::super::candidates::tests::{machine, node};
    use super::super::fixtures::{RULE, lease_of, list_at};
    use super::*;

    fn at(seconds: i64) -> UnixTime {
        UnixTime((1_000 + seconds) * 1_000_000)
    }

    /// Three leases were seen at second -8: what is renewed later was seen to be renewed.
    fn watching(place: f64) -> ProbeState {
        let mut state = ProbeState::at_place(place);
        leases(&mut state, -8, &[-9, -9, -9]);
        state.reported(&Outcome::Healthy);
        state
    }

    /// The leases of `n0`, `n1` and so on, which were renewed then.
    fn list(time: UnixTime, renewed: &[i64]) -> LeaseList {
        let lease = |(i, t): (usize, &i64)| lease_of(&format!("n{i}"), Some(at(*t)));
        let leases: Vec<_> = renewed.iter().enumerate().map(lease).collect();
        list_at(time, &leases)
    }

    fn leases(state: &mut ProbeState, seconds: i64, renewed: &[i64]) -> ProbeStep {
        state.leases(&list(at(seconds), renewed), RULE, false)
    }

    /// Judges the leases that were listed then with these nodes.
    fn judge(state: &mut ProbeState, seconds: i64, renewed: &[i64], nodes: &[&str]) -> Assessment {
        state.judge(&list(at(seconds), renewed), index(nodes), RULE)
    }

    fn index(nodes: &[&str]) -> NodeIndex {
        let machines: Vec<_> = { nodes.iter() }
            .map(|name| machine(name, MachinePhase::Other))
            .collect();
        let nodes: Vec<_> = nodes.iter().map(|name| node(name)).collect();
        NodeIndex::new(&nodes, &machines, &ShootSettings::default())
    }

    #[test]
    fn a_healthy_probe_needs_no_nodes() {
        let mut state = watching(0.0);
        let assessment = assessed(leases(&mut state, 5, &[0, 1, 2]));
        assert_eq!(assessment.outcome, Outcome::Healthy);
        assert_eq!(
            assessment.crossing,
            Some(at(30)),
            "looks again when the first lease would expire"
        );
    }

    /// A lease that was deleted before the first list does not show in it.
    #[test]
    fn a_replica_that_has_just_started_counts_the_nodes() {
        let mut state = ProbeState::at_place(0.0);
        assert_eq!(done(leases(&mut state, 5, &[0, 1, 2])), Outcome::Pending);
        // The third lease is not renewed yet.
        let ProbeStep::CountNodes(healthy) = leases(&mut state, 12, &[10, 11, 2]) else {
            panic!("did not count")
        };
        assert_eq!(healthy.outcome, Outcome::Healthy);
        assert_eq!([healthy.renewing, healthy.undated], [2, 1]);
        // There are eight nodes: five leases are missing.
        let nodes: Vec<_> = (0..8).map(|i| format!("n{i}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let judged = judge(&mut state.clone(), 12, &[10, 11, 2], &nodes);
        assert_eq!((judged.outcome, judged.without_lease), (Outcome::Pending, 5));
        // Or the three nodes that have a lease: then once is enough.
        state.reported(&healthy.outcome);
        assert_eq!(done(leases(&mut state, 15, &[10, 11, 12])), Outcome::Healthy);
    }

    /// The nodes were cut off before it started, and the clock of its host is so far behind that their last renewals
    /// look new. It must not refute the witness that has seen them, nor restore what that one has scaled down.
    #[test]
    fn a_replica_that_starts_in_a_loss_calls_it_healthy_on_no_clock() {
        for behind in [0, 12, 120] {
            let mut state = ProbeState::at_place(0.0);
            let renewed = [0, 1, 2].map(|at| at + behind);
            for seconds in (12..=60).step_by(1) {
                let (list, nodes) = (list(at(seconds), &renewed), ["n0", "n1", "n2"]);
                let outcome = match state.leases(&list, RULE, false) {
                    ProbeStep::Done(found) => found.outcome,
                    _ => state.judge(&list, index(&nodes), RULE).outcome,
                };
                assert_ne!(outcome, Outcome::Healthy, "{behind} s behind, at {seconds} s");
                state.reported(&outcome);
            }
            let back = [51, 52, 53].map(|at| at + behind);
            let list = list(at(62), &back);
            let judged = state.leases(&list, RULE, false);
            assert_eq!(done(judged), Outcome::Healthy, "{behind} s behind, renewed");
        }
    }

    /// Its age is that of the moment at which the list was asked for: since then it may have been renewed.
    #[test]
    fn an_answer_that_takes_long_makes_no_lease_older() {
        let mut state = watching(0.0);
        leases(&mut state, 5, &[0, 1, 2]);
        let slow = LeaseList {
            received: at(44),
            ..list(at(15), &[12, 13, 14])
        };
        let assessment = assessed(state.leases(&slow, RULE, false));
        assert_eq!(assessment.outcome, Outcome::Healthy);
        assert_eq!(assessment.judged, at(15));
    }

    #[test]
    fn a_lease_about_to_expire_is_looked_at_closely() {
        let mut state = watching(0.0);
        leases(&mut state, 5, &[0, 1, 2]);
        for second in [12, 20] {
            leases(&mut state, second, &[0, 11, 12]);
        }
        leases(&mut state, 28, &[0, 21, 22]);
        let almost = list(at(29).shifted(1), &[0, 21, 22]);
        assert_eq!(state.leases(&almost, RULE, false), ProbeStep::ListNodes(None));
        let judged = state.judge(&almost, index(&ALL), RULE);
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.crossing, Some(at(51)), "the second of three");
    }

    #[test]
    fn an_orphaned_lease_does_not_make_every_probe_list_the_nodes() {
        let mut state = watching(0.0);
        leases(&mut state, 5, &[0, 1, 2]);
        let later = &[0, 31, 32];
        assert_eq!(leases(&mut state, 35, later), ProbeStep::ListNodes(None));
        let judged = judge(&mut state, 35, later, &["n1", "n2"]);
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.excluded, [(Exclusion::NoNode, 1)].into());
        let next = assessed(leases(&mut state, 45, &[0, 41, 42]));
        assert_eq!(next.excluded, [(Exclusion::NoNode, 1)].into());
        // But only for `GOOD_ENOUGH`.
        assert_eq!(leases(&mut state, 66, &[0, 61, 62]), ProbeStep::ListNodes(None));
    }

    /// A reason to exclude a node may be over.
    #[test]
    fn a_shoot_is_not_called_healthy_by_old_nodes_while_its_kubelets_are_silent() {
        let mut state = watching(0.0);
        let last = &[0, 31, 32];
        leases(&mut state, 35, last);
        judge(&mut state, 35, last, &["n1", "n2"]);
        assert_eq!(done(leases(&mut state, 45, last)), Outcome::Healthy);
        // Both have missed a renewal.
        assert_eq!(leases(&mut state, 48, last), ProbeStep::ListNodes(None));
    }

    /// The Machine of a node that renews may be Terminating since.
    #[test]
    fn a_shoot_is_not_called_healthy_by_old_nodes_where_one_node_less_makes_a_loss() {
        let mut state = ProbeState::at_place(0.0);
        leases(&mut state, -8, &[-9, -9, -9, -9]);
        state.reported(&Outcome::Healthy);
        leases(&mut state, 5, &[0, 0, 1, 2]);
        let half = &[0, 0, 31, 32];
        leases(&mut state, 15, &[0, 0, 11, 12]);
        leases(&mut state, 25, &[0, 0, 21, 22]);
        assert_eq!(leases(&mut state, 35, half), ProbeStep::ListNodes(None));
        let judged = judge(&mut state, 35, half, &["n0", "n1", "n2", "n3"]);
        assert_eq!((judged.outcome, judged.expired), (Outcome::Healthy, 2));
        assert_eq!(done(leases(&mut state, 45, &[0, 0, 41, 42])), Outcome::Healthy);
        assert_eq!(
            leases(&mut state, 48, &[0, 0, 41, 42]),
            ProbeStep::ListNodes(None)
        );
    }

    /// machine-controller-manager may have begun to update one of the nodes that renew.
    #[test]
    fn nor_does_a_loss_end_by_old_nodes() {
        let mut state = ProbeState::at_place(0.0);
        leases(&mut state, -8, &[-9, -9, -9, -9]);
        let silent = &[0, 0, 1, 2];
        for second in [5, 15, 25] {
            leases(&mut state, second, silent);
        }
        let judged = judge(&mut state, 35, silent, &["n0", "n1", "n2", "n3"]);
        assert_eq!(judged.outcome, Outcome::LeasesExpired);
        state.reported(&judged.outcome);
        let half = &[0, 0, 41, 42];
        assert_eq!(done(leases(&mut state, 45, half)), Outcome::Healthy);
        assert_eq!(leases(&mut state, 48, half), ProbeStep::ListNodes(None));
    }

    #[test]
    fn nodes_without_a_lease_are_remembered_until_the_nodes_do_not_matter() {
        let mut state = watching(0.0);
        assert_eq!(state.remembered(), 3);
        let last = &[0, 31, 32];
        leases(&mut state, 35, last);
        judge(&mut state, 35, last, &["n0", "n1", "n2", "a", "b"]);
        leases(&mut state, 36, last);
        assert_eq!(state.remembered(), 5);
        leases(&mut state, 42, &[41, 41, 42]);
        assert_eq!(state.remembered(), 3);
    }

    #[test]
    fn a_new_expiry_lists_the_nodes_again() {
        let mut state = watching(0.0);
        leases(&mut state, 5, &[0, 1, 2]);
        let later = &[0, 31, 32];
        for second in [15, 25, 35] {
            leases(&mut state, second, later);
        }
        judge(&mut state, 35, later, &["n1", "n2"]);
        let lost = &[0, 31, 32];
        for second in [45, 55] {
            leases(&mut state, second, lost);
        }
        assert_eq!(leases(&mut state, 65, lost), ProbeStep::ListNodes(None));
        let judged = judge(&mut state, 65, lost, &["n0", "n1", "n2"]);
        assert_eq!(judged.outcome, Outcome::LeasesExpired);
        assert_eq!(
            judged.zones.get("a").map(|z| (z.candidates, z.expired)),
            Some((3, 3))
        );
    }

    const ALL: [&str; 3] = ["n0", "n1", "n2"];

    fn assessed(next: ProbeStep) -> Assessment {
        match next {
            ProbeStep::Done(assessment) => assessment,
            next => panic!("not done: {next:?}"),
        }
    }

    fn done(next: ProbeStep) -> Outcome {
        assessed(next).outcome
    }

    #[test]
    fn the_nodes_are_listed_ahead_of_a_loss() {
        let mut state = watching(0.0);
        let renewed = &[0, 1, 2];
        let healthy = assessed(leases(&mut state, 5, renewed));
        state.reported(&healthy.outcome);
        // Two of three leases make a loss; two renew intervals without a renewal make it near.
        assert_eq!(healthy.look_ahead, Some(at(21)));
        leases(&mut state, 14, renewed);
        let ProbeStep::ListNodes(Some(near)) = leases(&mut state, 23, renewed) else {
            panic!("did not look ahead")
        };
        assert_eq!((near.outcome, near.crossing), (Outcome::Healthy, Some(at(30))));
        judge(&mut state, 23, renewed, &ALL);
        // Known now: neither shortly before nor at the crossing are they listed again.
        let known = assessed(leases(&mut state, 25, renewed));
        assert_eq!(known.crossing, Some(at(31)));
        assert_eq!(done(leases(&mut state, 30, renewed)), Outcome::Healthy);
        assert_eq!(done(leases(&mut state, 31, renewed)), Outcome::LeasesExpired);
    }

    /// Shoots that are lost at the same instant, and are all probed each second by then, list their nodes apart.
    #[test]
    fn each_shoot_lists_its_nodes_at_a_moment_of_its_own() {
        let moments = |renewed: &[i64]| {
            [0.0, 0.5, 1.0].map(|place| {
                let mut state = watching(place);
                state.reported(&Outcome::Healthy);
                let mut tenths = (50..400).filter(|tenths| {
                    let list = list(UnixTime(1_000_000_000 + tenths * 100_000), renewed);
                    !matches!(state.leases(&list, RULE, false), ProbeStep::Done(_))
                });
                tenths.next().unwrap()
            })
        };
        // 10, 7.75 and 5.5 s before the crossing at 31 s.
        assert_eq!(moments(&[0, 1, 2]), [210, 233, 255]);
        // The crossing is at 30 s. At 23 s the first lease is about to expire.
        assert_eq!(moments(&[-6, 0, 0]), [200, 215, 230]);
    }

    #[test]
    fn a_verdict_turns_only_on_nodes_listed_lately() {
        let mut state = watching(0.0);
        let renewed = &[0, 1, 2];
        leases(&mut state, 5, renewed);
        for second in [15, 19] {
            leases(&mut state, second, renewed);
        }
        judge(&mut state, 19, renewed, &ALL);
        leases(&mut state, 25, renewed);
        assert_eq!(
            done(leases(&mut state.clone(), 31, renewed)),
            Outcome::LeasesExpired
        );
        assert_eq!(leases(&mut state, 32, renewed), ProbeStep::ListNodes(None));
        state.reported(&Outcome::LeasesExpired);
        assert_eq!(
            done(leases(&mut state, 32, renewed)),
            Outcome::LeasesExpired,
            "it stands"
        );
        assert_eq!(
            leases(&mut state, 50, renewed),
            ProbeStep::ListNodes(None),
            "but not once the list of the nodes is too old"
        );
        judge(&mut state, 50, renewed, &ALL);
        let back = &[0, 51, 52];
        assert_eq!(done(leases(&mut state, 53, back)), Outcome::Healthy);
    }

    #[test]
    fn a_lease_that_was_not_there_makes_the_nodes_listed_again() {
        let mut state = watching(0.0);
        let renewed = &[0, 1, 2];
        leases(&mut state, 5, renewed);
        judge(&mut state, 29, renewed, &ALL);
        assert_eq!(leases(&mut state, 31, &[0, 1, 2, 30]), ProbeStep::ListNodes(None));
    }

    #[test]
    fn looking_ahead_never_takes_a_kubelet_on_time_for_lost() {
        // A grace period that is hardly longer than the renew interval.
        let rule = ExpiryRule {
            grace: Duration::from_secs(16),
            expiry_age: Duration::from_secs(12),
            threshold: 0.6,
        };
        let mut state = watching(0.0);
        state.leases(&list(at(1), &[0, 0, 0]), rule, false);
        let step = state.leases(&list(at(10), &[0, 0, 0]), rule, false);
        assert_eq!(done(step), Outcome::Healthy);
    }
}
