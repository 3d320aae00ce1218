//! The state kept between two probes of a shoot, and the rule for when the nodes must be listed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use watchdog_api::unix_time::UnixTime;

use super::answered::{AnsweredTime, ListTimes};
use super::assessment::{Assessment, AssessmentContext, ExpiryRule, ExternalOutage, ListedLeases, assess};
use super::candidates::{Exclusion, NodeIndex};
use super::outcome::Outcome;
use super::renewals::{Renewals, longest_pause};
use super::schedule::{self, MIN_SPACING, ProbePace};

/// Nodes and machines that were listed at most this many renew intervals ago are good enough to turn a verdict with.
/// The reason why a kubelet is silent, such as a Machine that is deleted or an update in place, shows in them before
/// the kubelet falls silent, and an expired lease has been silent for longer than this. But a reason that is over since
/// does not show, and an external endpoint that is away makes silence count that is hardly older.
const FRESH: f64 = 1.25;

/// Nodes and machines that a probe listed itself may have taken longer. Then they are good enough if they were asked
/// for after the kubelets had missed a renewal.
fn longest_list(rule: ExpiryRule, renew_interval: Duration) -> Duration {
    rule.expiry_age.saturating_sub(renew_interval)
}

/// And this many are good enough for a verdict that does not turn into a loss: neither an expired lease that does not
/// matter nor a loss that stands costs a list of all nodes, and of the machines on the seed, with every probe.
const GOOD_ENOUGH: f64 = 3.0;

/// Nodes and machines are listed at most this many renew intervals ahead of a crossing, so that they are still
/// [`FRESH`] when it comes, also if it turns out to be a second later.
const LONGEST_LEAD: f64 = 1.1;

/// This long after a pause, a 429 of the seed to a list of the machines is the first one again.
const THROTTLING_ENDS: Duration = Duration::from_secs(60);

/// Each shoot has a moment of its own in this first part of [`ProbeState::longest_lead`], so that the shoots of a seed
/// that are lost at once do not all list their nodes at once. The rest, 6 s by default, is for a list that takes long,
/// and for most of the pause after a 429.
const SPREAD: f64 = 0.45;

/// The last list of the nodes and machines.
#[derive(Debug, Clone)]
struct ListedNodes {
    index: NodeIndex,
    // The leases without a node.
    orphans: HashSet<Arc<str>>,
    as_of: UnixTime,
}

/// The last verdict that settled whether the nodes are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LastSettledOutcome {
    /// None yet: another replica may have reported a loss.
    #[default]
    Unknown,
    Connected,
    Lost,
}

/// The state kept between two probes of a shoot.
#[derive(Debug, Clone, Default)]
pub struct ProbeState {
    renewals: Renewals,
    // Only while something is suspicious.
    nodes: Option<ListedNodes>,
    settled: LastSettledOutcome,
    external: Option<ExternalOutage>,
    // Until then the seed's API server wants to be left alone.
    machines_paused_until: UnixTime,
    // Its 429s in a row.
    machines_throttled: u32,
    // The shoot's place in `SPREAD`, from 0 to 1.
    place: f64,
}

/// The next step after a list of the leases.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeStep {
    /// No lease is expired or about to, or enough is known of the nodes: they need not be listed.
    Done(Assessment),
    /// The leases that are there show the nodes connected, but this replica has seen no others that could be missing.
    /// If there are more nodes than leases, list the nodes and machines, then [`ProbeState::judge`]; else this holds.
    CountNodes(Assessment),
    /// The nodes and machines must be listed; then [`ProbeState::judge`].
    ListNodes,
    /// Nothing is expired, but a loss is near. List the nodes and machines now, then [`ProbeState::judge`], so that it
    /// can be reported at once when it comes. Should that fail, this holds.
    Ahead(Assessment),
}

impl ProbeState {
    /// Nothing is known yet. `place`, from 0 to 1, is the shoot's among those that are lost at once.
    #[must_use]
    pub fn at_place(place: f64) -> Self {
        Self {
            place: place.clamp(0.0, 1.0),
            ..Self::default()
        }
    }

    /// Forgets everything about the shoot.
    pub fn forget(&mut self) {
        *self = Self::at_place(self.place);
    }

    /// Takes in a complete list of the leases and judges them as of when it was asked for: a lease that expired since
    /// then may have been renewed in the meantime.
    pub fn leases(&mut self, times: ListTimes, listed: &ListedLeases, rule: ExpiryRule) -> ProbeStep {
        let longest = longest_pause(rule.expiry_age);
        self.renewals.observe(times, &listed.leases, longest);
        let now = times.sent;
        let context = self.context(rule);
        let mut assessment = assess(listed, &self.renewals, |_| None, None, context, now);
        // A lease about to expire also counts: probing exactly at the crossing requires knowing when the crossing is.
        let soon = now.after(MIN_SPACING);
        let imminent = assessment.next_expiry.is_some_and(|expiry| expiry < soon);
        let look_ahead = assessment.crossing.map(|crossing| {
            // Not only when the first lease is about to expire: that is a probe on a tick that many shoots share.
            let latest = assessment.next_expiry.map(|expiry| expiry.before(MIN_SPACING));
            self.look_ahead(crossing, latest, rule)
        });
        let ahead = look_ahead.is_some_and(|at| at <= now);
        let suspicious = imminent
            || assessment.evidence.expired > 0
            || assessment.evidence.unconfirmed > 0
            || assessment.evidence.renewing == 0;
        if !suspicious && !ahead {
            self.nodes = None;
            assessment.look_ahead = look_ahead;
        }
        // How many leases count is not known exactly, so neither is the crossing: it cannot come before the first
        // expiry, and then the nodes are listed.
        let exact = assessment.crossing.filter(|_| context.external.is_some());
        assessment.crossing = [exact, assessment.next_expiry].into_iter().flatten().min();
        match self.by_nodes(listed, context, now) {
            Some(judged) => ProbeStep::Done(judged),
            None if suspicious || assessment.outcome.is_loss() => ProbeStep::ListNodes,
            None if self.settled == LastSettledOutcome::Unknown && assessment.outcome == Outcome::Healthy => {
                ProbeStep::CountNodes(assessment)
            }
            None if ahead => ProbeStep::Ahead(assessment),
            None => ProbeStep::Done(assessment),
        }
    }

    /// Assesses the leases with the last list of the nodes and machines. Returns none if that list is too old, or if
    /// there are leases that it does not cover, because their nodes joined later.
    fn by_nodes(
        &self,
        listed: &ListedLeases,
        context: AssessmentContext,
        now: UnixTime,
    ) -> Option<Assessment> {
        let ListedNodes {
            index: nodes,
            orphans,
            as_of,
        } = self.nodes.as_ref()?;
        let covered = |lease: &str| nodes.knows(lease) || orphans.contains(lease);
        if !self.is_within(GOOD_ENOUGH, *as_of, now)
            || !listed.leases.iter().all(|lease| covered(&lease.name))
        {
            return None;
        }
        let excluded = |lease: &str| nodes.exclusion(lease);
        let judged = assess(listed, &self.renewals, excluded, Some(nodes), context, now);
        let turns = judged.outcome.is_loss() && self.settled != LastSettledOutcome::Lost;
        (!turns || self.is_within(FRESH, *as_of, now)).then_some(judged)
    }

    fn is_within(&self, intervals: f64, as_of: UnixTime, now: UnixTime) -> bool {
        now.since(as_of) <= self.renew_interval().mul_f64(intervals)
    }

    /// When to list the nodes ahead of a crossing, at `latest` if there is room for that.
    fn look_ahead(&self, crossing: UnixTime, latest: Option<UnixTime>, rule: ExpiryRule) -> UnixTime {
        let lead = self.longest_lead(rule);
        let earliest = crossing.before(lead);
        let spread = crossing.before(lead.mul_f64(1.0 - SPREAD));
        let latest = latest.map_or(spread, |latest| latest.min(spread)).max(earliest);
        earliest.after(latest.since(earliest).mul_f64(self.place))
    }

    /// How long before a crossing the nodes may be listed: early enough that listing them for all shoots of a seed can
    /// be spread, and not so early that a kubelet which is merely late looks lost. A live one renews every interval.
    fn longest_lead(&self, rule: ExpiryRule) -> Duration {
        let interval = self.renew_interval();
        let longest = interval.mul_f64(LONGEST_LEAD);
        longest.min(rule.expiry_age.saturating_sub(interval) / 2)
    }

    /// Judges the leases of the last list with the nodes and machines listed after it, as of the same moment `now`,
    /// however long that took.
    pub fn judge(
        &mut self,
        listed: &ListedLeases,
        nodes: NodeIndex,
        rule: ExpiryRule,
        now: UnixTime,
    ) -> Assessment {
        self.machines_throttled = 0;
        self.judge_by(listed, nodes, rule, now, now)
    }

    /// Judges a newer list of the leases, asked for at `now`, with the nodes and machines of the last judgement, which
    /// were asked for at `as_of`. For when listing the nodes took so long that the first list of leases is old. Returns
    /// none if it took so long that the nodes prove nothing.
    pub fn judge_again(
        &mut self,
        listed: &ListedLeases,
        rule: ExpiryRule,
        as_of: UnixTime,
        now: UnixTime,
    ) -> Option<Assessment> {
        if now.since(as_of) > longest_list(rule, self.renew_interval()) {
            return None;
        }
        let nodes = self.nodes.take()?;
        Some(self.judge_by(listed, nodes.index, rule, as_of, now))
    }

    fn judge_by(
        &mut self,
        listed: &ListedLeases,
        nodes: NodeIndex,
        rule: ExpiryRule,
        as_of: UnixTime,
        now: UnixTime,
    ) -> Assessment {
        // A node that is gone with its Machine is gone on purpose.
        let renewals = &mut self.renewals;
        renewals.forget_missing(|lease| nodes.exclusion(lease) == Some(Exclusion::NoNode));
        let exclusion = |lease: &str| nodes.exclusion(lease);
        let context = self.context(rule);
        let assessment = assess(listed, &self.renewals, exclusion, Some(&nodes), context, now);
        let names = listed.leases.iter().map(|lease| &lease.name);
        let orphans = names.filter(|lease| !nodes.knows(lease)).cloned().collect();
        self.nodes = Some(ListedNodes {
            index: nodes,
            orphans,
            as_of,
        });
        assessment
    }

    fn context(&self, rule: ExpiryRule) -> AssessmentContext {
        AssessmentContext {
            rule,
            loss_may_stand: self.settled != LastSettledOutcome::Connected,
            external: self.external,
        }
    }

    /// The answered time of the API server, to note what suggests that it did not answer.
    pub const fn answered_mut(&mut self) -> &mut AnsweredTime {
        self.renewals.answered_mut()
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

    /// The seed's API server answered 429 to the list of the machines and asked for `wait`. `random` is in [0, 1).
    pub(crate) fn machines_throttled(
        &mut self,
        wait: Option<Duration>,
        pace: ProbePace,
        random: f64,
        now: UnixTime,
    ) {
        if now.since(self.machines_paused_until) > THROTTLING_ENDS {
            self.machines_throttled = 0;
        }
        self.machines_throttled = self.machines_throttled.saturating_add(1);
        let pause = schedule::machines_pause(wait, self.machines_throttled, pace, random);
        self.machines_paused_until = now.after(pause);
    }

    /// For how long the machines must not be listed; none if they may be.
    #[must_use]
    pub fn machines_pause(&self, now: UnixTime) -> Option<Duration> {
        (now < self.machines_paused_until).then(|| self.machines_paused_until.since(now))
    }

    /// A verdict was reported.
    pub fn reported(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Healthy => self.settled = LastSettledOutcome::Connected,
            outcome if outcome.is_loss() => self.settled = LastSettledOutcome::Lost,
            _ => {}
        }
    }

    /// The rule for candidates has changed: the nodes must be listed again.
    pub fn forget_nodes(&mut self) {
        self.nodes = None;
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
    use super::super::fixtures::list_at;
    use super::super::renewals::ListedLease;
    use super::*;

    const RULE: ExpiryRule = ExpiryRule {
        expiry_age: Duration::from_secs(30),
        threshold: 0.6,
    };

    fn at(seconds: i64) -> UnixTime {
        UnixTime((1_000 + seconds) * 1_000_000)
    }

    /// Three leases were seen at second -8: what is renewed later was seen to be renewed.
    fn watching(place: f64) -> ProbeState {
        let mut state = ProbeState::at_place(place);
        state.leases(listing(-8), &listed(&[-9, -9, -9]), RULE);
        state.reported(&Outcome::Healthy);
        state
    }

    fn listed(renewed: &[i64]) -> ListedLeases {
        let lease = |(i, t): (usize, &i64)| ListedLease {
            name: format!("n{i}").into(),
            revision: at(*t).0.unsigned_abs(),
            renew_time: Some(at(*t)),
            duration_seconds: Some(40),
        };
        ListedLeases {
            leases: renewed.iter().enumerate().map(lease).collect(),
            malformed: 0,
            revision: 0,
        }
    }

    fn listing(seconds: i64) -> ListTimes {
        list_at(at(seconds))
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
        let ProbeStep::Done(assessment) = state.leases(listing(5), &listed(&[0, 1, 2]), RULE) else {
            panic!("asked for the nodes")
        };
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
        let leases = listed(&[0, 1, 2]);
        let ProbeStep::CountNodes(healthy) = state.leases(listing(5), &leases, RULE) else {
            panic!("did not count")
        };
        assert_eq!(healthy.outcome, Outcome::Healthy);
        // There are eight nodes: five leases are missing.
        let nodes: Vec<_> = (0..8).map(|i| format!("n{i}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let judged = state.clone().judge(&leases, index(&nodes), RULE, at(5));
        assert_eq!(
            (judged.outcome, judged.evidence.without_lease),
            (Outcome::Pending, 5)
        );
        // Or the three nodes that have a lease: then once is enough.
        state.reported(&healthy.outcome);
        let next = listed(&[10, 11, 12]);
        assert_eq!(done(state.leases(listing(15), &next, RULE)), Outcome::Healthy);
    }

    /// Its age is that of the moment at which the list was asked for: since then it may have been renewed.
    #[test]
    fn an_answer_that_takes_long_makes_no_lease_older() {
        let mut state = watching(0.0);
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        let slow = ListTimes {
            sent: at(15),
            received: at(44),
            revision: at(15).0.unsigned_abs(),
        };
        let ProbeStep::Done(assessment) = state.leases(slow, &listed(&[12, 13, 14]), RULE) else {
            panic!("asked for the nodes")
        };
        assert_eq!(assessment.outcome, Outcome::Healthy);
        assert_eq!(assessment.judged, at(15));
    }

    #[test]
    fn a_lease_about_to_expire_is_looked_at_closely() {
        let mut state = watching(0.0);
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        for second in [12, 20] {
            state.leases(listing(second), &listed(&[0, 11, 12]), RULE);
        }
        state.leases(listing(28), &listed(&[0, 21, 22]), RULE);
        let almost = list_at(at(29).shifted(1));
        let leases = listed(&[0, 21, 22]);
        assert_eq!(state.leases(almost, &leases, RULE), ProbeStep::ListNodes);
        let judged = state.judge(&leases, index(&["n0", "n1", "n2"]), RULE, almost.sent);
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.crossing, Some(at(51)), "the second of three");
    }

    #[test]
    fn an_orphaned_lease_does_not_make_every_probe_list_the_nodes() {
        let mut state = watching(0.0);
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        let later = listed(&[0, 31, 32]);
        assert_eq!(state.leases(listing(35), &later, RULE), ProbeStep::ListNodes);
        let judged = state.judge(&later, index(&["n1", "n2"]), RULE, at(35));
        assert_eq!(judged.outcome, Outcome::Healthy);
        assert_eq!(judged.evidence.excluded, [(Exclusion::NoNode, 1)].into());
        let ProbeStep::Done(next) = state.leases(listing(45), &listed(&[0, 41, 42]), RULE) else {
            panic!("forgot what it had found out")
        };
        assert_eq!(next.evidence.excluded, [(Exclusion::NoNode, 1)].into());
        // But only for `GOOD_ENOUGH`.
        assert_eq!(
            state.leases(listing(66), &listed(&[0, 61, 62]), RULE),
            ProbeStep::ListNodes
        );
    }

    #[test]
    fn a_new_expiry_lists_the_nodes_again() {
        let mut state = watching(0.0);
        state.leases(listing(5), &listed(&[0, 1, 2]), RULE);
        let later = listed(&[0, 31, 32]);
        for second in [15, 25, 35] {
            state.leases(listing(second), &later, RULE);
        }
        state.judge(&later, index(&["n1", "n2"]), RULE, at(35));
        let lost = listed(&[0, 31, 32]);
        for second in [45, 55] {
            state.leases(listing(second), &lost, RULE);
        }
        assert_eq!(state.leases(listing(65), &lost, RULE), ProbeStep::ListNodes);
        let judged = state.judge(&lost, index(&["n0", "n1", "n2"]), RULE, at(65));
        assert_eq!(judged.outcome, Outcome::LeasesExpired);
        assert_eq!(
            judged.evidence.zones.get("a").map(|z| (z.candidates, z.expired)),
            Some((3, 3))
        );
    }

    const ALL: [&str; 3] = ["n0", "n1", "n2"];

    fn judged(state: &mut ProbeState, listed: &ListedLeases, seconds: i64) {
        state.judge(listed, index(&ALL), RULE, at(seconds));
    }

    fn done(next: ProbeStep) -> Outcome {
        match next {
            ProbeStep::Done(assessment) => assessment.outcome,
            next => panic!("not done: {next:?}"),
        }
    }

    #[test]
    fn the_nodes_are_listed_ahead_of_a_loss() {
        let mut state = watching(0.0);
        let leases = listed(&[0, 1, 2]);
        let ProbeStep::Done(healthy) = state.leases(listing(5), &leases, RULE) else {
            panic!("not done")
        };
        state.reported(&healthy.outcome);
        // Two of three leases make a loss; two renew intervals without a renewal make it near.
        assert_eq!(healthy.look_ahead, Some(at(21)));
        state.leases(listing(14), &leases, RULE);
        let ProbeStep::Ahead(near) = state.leases(listing(23), &leases, RULE) else {
            panic!("did not look ahead")
        };
        assert_eq!((near.outcome, near.crossing), (Outcome::Healthy, Some(at(30))));
        judged(&mut state, &leases, 23);
        // Known now: neither shortly before nor at the crossing are they listed again.
        let ProbeStep::Done(known) = state.leases(listing(25), &leases, RULE) else {
            panic!("asked again")
        };
        assert_eq!(known.crossing, Some(at(31)));
        assert_eq!(done(state.leases(listing(30), &leases, RULE)), Outcome::Healthy);
        assert_eq!(
            done(state.leases(listing(31), &leases, RULE)),
            Outcome::LeasesExpired
        );
    }

    /// Shoots that are lost at the same instant, and are all probed each second by then, list their nodes apart.
    #[test]
    fn each_shoot_lists_its_nodes_at_a_moment_of_its_own() {
        let moments = |renewed: &[i64]| {
            let leases = listed(renewed);
            [0.0, 0.5, 1.0].map(|place| {
                let mut state = watching(place);
                state.reported(&Outcome::Healthy);
                let mut tenths = (50..400).filter(|tenths| {
                    let times = list_at(UnixTime(1_000_000_000 + tenths * 100_000));
                    !matches!(state.leases(times, &leases, RULE), ProbeStep::Done(_))
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
        let leases = listed(&[0, 1, 2]);
        state.leases(listing(5), &leases, RULE);
        for second in [15, 19] {
            state.leases(listing(second), &leases, RULE);
        }
        judged(&mut state, &leases, 19);
        state.leases(listing(25), &leases, RULE);
        assert_eq!(
            done(state.clone().leases(listing(31), &leases, RULE)),
            Outcome::LeasesExpired
        );
        assert_eq!(state.leases(listing(32), &leases, RULE), ProbeStep::ListNodes);
        state.reported(&Outcome::LeasesExpired);
        assert_eq!(
            done(state.leases(listing(32), &leases, RULE)),
            Outcome::LeasesExpired,
            "it stands"
        );
        assert_eq!(
            state.leases(listing(50), &leases, RULE),
            ProbeStep::ListNodes,
            "but not once the list of the nodes is too old"
        );
        judged(&mut state, &leases, 50);
        let back = listed(&[0, 51, 52]);
        assert_eq!(done(state.leases(listing(53), &back, RULE)), Outcome::Healthy);
    }

    #[test]
    fn a_list_of_machines_or_a_quiet_minute_ends_the_throttling() {
        let pace = ProbePace {
            interval: Duration::from_secs(10),
            jitter: 0.2,
            failure_back_off: Duration::from_secs(30),
            shoots: 1,
            close: 0,
        };
        let pause = |state: &mut ProbeState, seconds| {
            state.machines_throttled(Some(Duration::from_secs(1)), pace, 0.0, at(seconds));
            state.machines_pause(at(seconds)).unwrap().as_secs()
        };
        let mut state = watching(0.0);
        assert_eq!(
            [0, 2, 6, 14].map(|second| pause(&mut state, second)),
            [2, 4, 8, 10]
        );
        assert_eq!(pause(&mut state, 84), 10, "a minute after the last pause");
        assert_eq!(pause(&mut state, 155), 2, "and a second later");
        assert_eq!(pause(&mut state, 157), 4);
        judged(&mut state, &listed(&[0, 1, 2]), 161);
        assert_eq!(pause(&mut state, 162), 2);
    }

    #[test]
    fn a_lease_that_was_not_there_makes_the_nodes_listed_again() {
        let mut state = watching(0.0);
        let leases = listed(&[0, 1, 2]);
        state.leases(listing(5), &leases, RULE);
        judged(&mut state, &leases, 29);
        assert_eq!(
            state.leases(listing(31), &listed(&[0, 1, 2, 30]), RULE),
            ProbeStep::ListNodes
        );
    }

    #[test]
    fn looking_ahead_never_takes_a_kubelet_on_time_for_lost() {
        // A grace period that is hardly longer than the renew interval.
        let rule = ExpiryRule {
            expiry_age: Duration::from_secs(12),
            threshold: 0.6,
        };
        let mut state = watching(0.0);
        let leases = listed(&[0, 0, 0]);
        state.leases(listing(1), &leases, rule);
        assert_eq!(done(state.leases(listing(10), &leases, rule)), Outcome::Healthy);
    }
}
