use proptest::prelude::*;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::lease::LeaseItem;
use watchdog_api::machine::MachinePhase;
use watchdog_api::node::NodeItem;

use super::super::candidates::tests::{condition, index_of, machine, node};
use super::super::fixtures::{RULE, lease_of, list_at, nothing_found};
use super::*;

const S: i64 = 1_000_000;
const LONGEST: Duration = Duration::from_secs(15);

fn at(seconds: i64) -> UnixTime {
    UnixTime(seconds * S)
}

/// Leases with the given ages in seconds at second 1000, all of them seen renewing before.
fn leases(ages: &[i64]) -> (LeaseList, Renewals) {
    leases_that_last(ages, |_| 40)
}

/// The same with lease durations in seconds.
fn leases_that_last(ages: &[i64], duration: impl Fn(usize) -> i32) -> (LeaseList, Renewals) {
    let as_of = |second: i64| {
        let lease = |(i, age): (usize, &i64)| {
            let renewed = 1000 - age;
            LeaseItem {
                lease_duration_seconds: Some(duration(i)),
                ..lease(
                    &format!("n{i}"),
                    Some(if renewed <= second { renewed } else { 0 }),
                )
            }
        };
        let leases: Vec<_> = ages.iter().enumerate().map(lease).collect();
        list_at(at(second), &leases)
    };
    // Each renewal was seen at the instant at which it was made.
    let mut order: Vec<i64> = ages
        .iter()
        .map(|age| 1000 - age)
        .chain((950..=1000).step_by(5))
        .collect();
    order.sort_unstable();
    let mut renewals = Renewals::default();
    for second in std::iter::once(0).chain(order) {
        renewals.observe(&as_of(second), LONGEST);
    }
    (as_of(1000), renewals)
}

/// Judges by the leases alone, with no loss that stands.
fn assess_leases(list: &LeaseList, renewals: &Renewals) -> Assessment {
    assess(list, renewals, None, RULE, false, None)
}

fn judge(ages: &[i64]) -> Assessment {
    let (list, renewals) = leases(ages);
    assess_leases(&list, &renewals)
}

#[test]
fn a_zone_is_expired_if_all_of_its_candidates_are_and_there_is_one() {
    for (candidates, expired, expected) in [(0, 0, false), (2, 0, false), (2, 1, false), (2, 2, true)] {
        let zone = ZoneCount { candidates, expired };
        assert_eq!(zone.is_expired(), expected, "{zone:?}");
    }
}

/// 12.5 s and 10 s prove a silence, and 3 s are for the scale-down.
#[test]
fn a_grace_period_is_too_short_if_kube_controller_manager_acts_before_the_scale_down() {
    for (grace, expected) in [(25_499, true), (25_500, false), (40_000, false)] {
        let found = Assessment {
            rule: ExpiryRule {
                grace: Duration::from_millis(grace),
                ..RULE
            },
            renew_interval: Duration::from_secs(10),
            ..Assessment::default()
        };
        assert_eq!(found.grace_too_short(), expected, "{grace} ms");
    }
}

#[test]
fn an_assessment_names_its_list_and_how_far_the_next_may_be() {
    let (mut list, mut renewals) = leases(&[5, 5]);
    list.revision = 7;
    list.leases.push(lease("ahead", Some(1_060)));
    renewals.observe(&list, LONGEST);
    let found = assess_leases(&list, &renewals);
    assert_eq!((found.list_revision, found.largest_skew), (7, 60 * S));
    assert_eq!(found.longest_pause, longest_pause(RULE.grace));
}

/// Otherwise, a shoot with two kinds of pools would be probed every second for as long as it exists.
#[test]
fn seconds_decide_when_kubelets_are_silent_at_their_own_pace() {
    let rule = ExpiryRule {
        threshold: 0.3,
        ..RULE
    };
    let urgent = |slow_kubelets: usize| {
        let duration = |i| if i < slow_kubelets { 80 } else { 40 };
        let (list, renewals) = leases_that_last(&[20, 20, 5, 5, 5], duration);
        assess(&list, &renewals, None, rule, false, None).urgent
    };
    assert_eq!([urgent(0), urgent(1), urgent(2)], [true, false, false]);
}

#[test]
fn the_crossing_is_the_expiry_of_the_lease_that_tips_the_balance() {
    // Three of five are required: ages 20, 12, 8 expire at 1010, 1018, 1022.
    let healthy = judge(&[20, 8, 12, 1, 2]);
    assert_eq!(
        (healthy.crossing, healthy.next_expiry),
        (Some(at(1022)), Some(at(1010)))
    );
    let lost = judge(&[40, 35, 32, 1, 2]);
    assert_eq!(lost.crossing, Some(at(998)));
    assert_eq!(judge(&[3]).crossing, None);
}

#[test]
fn what_is_not_confirmed_holds_the_verdict() {
    let names = ["n0", "n1", "n2"];
    let mut list = list_at(at(1000), &names.map(|name| lease(name, Some(0))));
    let mut renewals = Renewals::default();
    renewals.observe(&list, LONGEST);
    let early = assess_leases(&list, &renewals);
    assert_eq!((early.outcome, early.unconfirmed), (Outcome::Pending, 3));
    list.sent = early.crossing.unwrap();
    assert_eq!(assess_leases(&list, &renewals).outcome, Outcome::LeasesExpired);
}

/// Another replica, which saw the leases being renewed, may have found a loss already. This one has nothing but clocks
/// to tell how old they are, and does not know yet how far these are apart.
#[test]
fn a_first_look_at_leases_proves_no_health() {
    let first_look = |ages: &[i64]| {
        let (list, _) = leases(ages);
        let mut renewals = Renewals::default();
        renewals.observe(&list, LONGEST);
        assess(&list, &renewals, None, RULE, true, None)
    };
    for (ages, undated) in [
        ([4, 9, 14, 14, 14], 5),
        ([4, 9, 14, 31, 31], 3),
        ([4, 9, 16, 16, 16], 2),
        ([31, 31, 31, 31, 31], 0),
    ] {
        let found = first_look(&ages);
        assert_eq!(found.outcome, Outcome::Pending, "{ages:?}");
        let counts = [found.expired, found.renewing, found.unconfirmed, found.undated];
        assert_eq!(counts, [0, 0, 5, undated], "{ages:?}");
    }
    assert_eq!(
        judge(&[4, 9, 16, 16, 16]).outcome,
        Outcome::Healthy,
        "who saw them knows"
    );
}

/// The reason why the loss was known may be over: an external endpoint answers again, or the grace period was made
/// longer.
#[test]
fn leases_that_a_connected_kubelet_would_have_renewed_do_not_end_a_loss() {
    let (list, renewals) = leases(&[4, 9, 16, 16, 16]);
    let judge = |loss_may_stand| assess(&list, &renewals, None, RULE, loss_may_stand, None).outcome;
    assert_eq!([judge(true), judge(false)], [Outcome::Pending, Outcome::Healthy]);
}

/// Somebody edited the Leases. kube-controller-manager counts from the renewals that it saw.
#[test]
fn a_lease_that_lost_its_renew_time_counts_with_its_last_renewal() {
    let (mut list, mut renewals) = leases(&[31, 31, 5, 5]);
    for lease in &mut list.leases {
        lease.renew_time = None;
    }
    renewals.observe(&list, LONGEST);
    let found = assess_leases(&list, &renewals);
    assert_eq!((found.candidates, found.expired), (4, 2));
}

/// Conditions that appear on silent nodes do not end a loss, and they do not make one either.
#[test]
fn expired_leases_that_are_excluded_for_a_while_do_not_end_a_loss() {
    let (list, renewals) = leases(&[31, 31, 31, 5]);
    let judge = |exclusion: Exclusion, names: &[&str], loss_may_stand| {
        let excluded = |name: &'static str| (name, names.contains(&name).then_some(exclusion));
        let index = index_of(["n0", "n1", "n2", "n3"].map(excluded));
        assess(&list, &renewals, Some(&index), RULE, loss_may_stand, None).outcome
    };
    let silent = ["n0", "n1", "n2"];
    assert_eq!(
        judge(Exclusion::UnhealthyCondition, &silent, true),
        Outcome::Pending
    );
    assert_eq!(
        judge(Exclusion::InPlaceUpdate, &silent[..2], true),
        Outcome::Pending
    );
    assert_eq!(judge(Exclusion::InPlaceUpdate, &silent, false), Outcome::Healthy);
    assert_eq!(
        judge(Exclusion::MachineTerminating, &silent, true),
        Outcome::Healthy
    );
    let all = ["n0", "n1", "n2", "n3"];
    assert_eq!(judge(Exclusion::UnhealthyCondition, &all, true), Outcome::Pending);
    assert_eq!(judge(Exclusion::MachineFailed, &all, true), Outcome::Healthy);
    // A list may show too little.
    for absence in [Exclusion::NoMachine, Exclusion::NodeMissing] {
        assert_eq!(judge(absence, &silent, false), Outcome::Pending, "{absence:?}");
    }
}

/// Renewed leases refute an external endpoint that does not answer. Silence of 1.25 renew intervals since then confirms
/// it, if the silence of enough kubelets is proven.
#[test]
fn an_external_endpoint_makes_a_loss_known_earlier() {
    // Ages at the end, and for how long the endpoint has not answered then.
    let outcome = |ages: &[i64], lasts: i64, counts| {
        let before: Vec<i64> = ages.iter().map(|age| (age - lasts).max(1)).collect();
        let (mut list, mut renewals) = leases(&before);
        let outage = ExternalOutage {
            since: at(1000),
            mark: renewals.answered().now(),
            failures: 1,
            counts,
        };
        for second in 1001..=1000 + lasts {
            for (known, age) in list.leases.iter_mut().zip(ages) {
                let renewed = 1000 + lasts - age;
                if renewed <= second {
                    *known = lease(&known.name, Some(renewed));
                }
            }
            list = list_at(at(second), &list.leases);
            renewals.observe(&list, LONGEST);
        }
        // A write since then confirms the last second.
        renewals.observe(&list_at(list.sent.shifted(1), &list.leases), LONGEST);
        assess(&list, &renewals, None, RULE, false, Some(outage)).outcome
    };
    assert_eq!(outcome(&[14, 23, 24], 13, true), Outcome::ExternalUnreachable);
    assert_eq!(
        outcome(&[14, 23, 24], 13, false),
        Outcome::Healthy,
        "too few failures"
    );
    assert_eq!(outcome(&[14, 23, 24], 12, true), Outcome::Healthy, "too early");
    assert_eq!(
        outcome(&[14, 22, 24], 13, true),
        Outcome::Healthy,
        "one kubelet may be on its way back"
    );
    assert_eq!(
        outcome(&[12, 23, 24], 13, true),
        Outcome::Healthy,
        "one was renewed"
    );
    assert_eq!(
        outcome(&[13, 23, 24], 13, true),
        Outcome::Healthy,
        "one was renewed at the instant from which the endpoint was away"
    );
    assert_eq!(
        outcome(&[24], 13, true),
        Outcome::Healthy,
        "one lease is too little"
    );
    assert_eq!(outcome(&[31, 31, 31], 13, true), Outcome::LeasesExpired);
}

proptest! {
    #[test]
    fn required_is_the_smallest_number_that_reaches_the_threshold(n in 1_u32..2000, f in 0.001_f64..=1.0) {
        let k = required(n, f);
        prop_assert!(f64::from(k) / f64::from(n) >= f);
        prop_assert!(k == 1 || f64::from(k - 1) / f64::from(n) < f);
    }

    #[test]
    fn the_verdict_turns_exactly_at_the_crossing(ages in prop::collection::vec(0_i64..29, 2..30)) {
        let (list, renewals) = leases(&ages);
        let crossing = judge(&ages).crossing.unwrap();
        let outcome = |sent| assess_leases(&LeaseList { sent, ..list.clone() }, &renewals).outcome;
        prop_assert_eq!(outcome(crossing), Outcome::LeasesExpired);
        prop_assert_eq!(outcome(crossing.shifted(-1)), Outcome::Healthy);
    }
}

/// A hostile shoot may give each node a zone of its own.
#[test]
fn a_verdict_has_few_zones() {
    let (list, renewals) = leases(&[5; 50]);
    let in_own_zone = |lease: &LeaseItem| NodeItem {
        zone: Some(format!("zone-of-{}", lease.name).into()),
        ..node(&lease.name)
    };
    let machine = |lease: &LeaseItem| machine(&lease.name, MachinePhase::Other);
    let nodes: Vec<_> = list.leases.iter().map(in_own_zone).collect();
    let machines: Vec<_> = list.leases.iter().map(machine).collect();
    let index = NodeIndex::new(&nodes, &machines, &ShootSettings::default());
    let found = assess(&list, &renewals, Some(&index), RULE, false, None);
    let zones = &found.zones;
    assert_eq!(zones.len(), MOST_ZONES + 1);
    assert_eq!(zones["others"].candidates, 30);
}

/// The traits of one node by which its lease is excluded. A lease counts if none of them is set.
#[derive(Debug, Clone, Copy)]
struct NodeTraits {
    not_managed: bool,
    unhealthy: bool,
    in_place: bool,
    machine: Option<MachinePhase>,
    exists: bool,
    renew_time: bool,
    fresh: bool,
    zone: usize,
}

const ZONES: [&str; 3] = ["a", "b", "c"];

prop_compose! {
    fn traits()(
        (not_managed, unhealthy, in_place) in (
            prop::bool::weighted(0.2), prop::bool::weighted(0.2), prop::bool::weighted(0.2),
        ),
        machine in prop_oneof![
            1 => Just(None), 1 => Just(Some(MachinePhase::Failed)), 1 => Just(Some(MachinePhase::Terminating)),
            5 => Just(Some(MachinePhase::Other)),
        ],
        exists in prop::bool::weighted(0.9), renew_time in prop::bool::weighted(0.9), fresh: bool,
        zone in 0..ZONES.len(),
    ) -> NodeTraits {
        NodeTraits { not_managed, unhealthy, in_place, machine, exists, renew_time, fresh, zone }
    }
}

impl NodeTraits {
    fn node(self, name: &str) -> NodeItem {
        let mut conditions = vec![condition("Ready", "True", "KubeletReady")];
        if self.unhealthy {
            conditions.push(condition("DiskPressure", "True", ""));
        }
        if self.in_place {
            conditions.push(condition("InPlaceUpdate", "True", "ReadyForUpdate"));
        }
        NodeItem {
            zone: Some(ZONES[self.zone].into()),
            not_managed_by_mcm: self.not_managed,
            conditions,
            ..node(name)
        }
    }

    /// The rule of the design, read anew: any one of these is enough.
    fn counts(self) -> bool {
        self.exists
            && !self.not_managed
            && !self.unhealthy
            && !self.in_place
            && self.machine == Some(MachinePhase::Other)
            && self.renew_time
    }
}

/// The leases, renewed at second 0 and some at second 35, as they are listed up to second 40.
fn listed_up_to_40(leases: impl Fn(i64) -> Vec<LeaseItem>) -> (LeaseList, Renewals) {
    let mut renewals = Renewals::default();
    let mut list = LeaseList::default();
    for second in [0, 10, 20, 30, 39, 40] {
        list = list_at(at(second), &leases(second));
        renewals.observe(&list, LONGEST);
    }
    (list, renewals)
}

fn lease(name: &str, renewed: Option<i64>) -> LeaseItem {
    lease_of(name, renewed.map(at))
}

proptest! {
    /// Every filter with every other, also where a node has no lease or a lease no node: counted is exactly what no
    /// filter excludes, in total and per zone, and the outcome follows from those counts alone.
    #[test]
    fn filters_in_every_combination(
        fleet in prop::collection::vec(traits(), 0..12), leaseless in 0_usize..3, malformed in 0_u32..3,
    ) {
        let name = |i: usize| format!("node-{i}");
        let existing = fleet.iter().enumerate().filter(|(_, t)| t.exists);
        let mut nodes: Vec<_> = existing.map(|(i, t)| t.node(&name(i))).collect();
        let mut machines: Vec<_> =
            fleet.iter().enumerate().filter_map(|(i, t)| Some(machine(&name(i), t.machine?))).collect();
        for i in 0..leaseless {
            let name = format!("without-lease-{i}");
            nodes.push(node(&name));
            machines.push(machine(&name, MachinePhase::Other));
        }
        let index = NodeIndex::new(&nodes, &machines, &ShootSettings::default());
        let (mut list, renewals) = listed_up_to_40(|second| {
            fleet.iter().enumerate().map(|(i, t)| {
                let renewed = if t.fresh && second == 40 { 35 } else { 0 };
                lease(&name(i), t.renew_time.then_some(renewed))
            }).collect()
        });
        list.malformed = malformed;
        let found = assess(&list, &renewals, Some(&index), RULE, false, None);

        let counting: Vec<_> = fleet.iter().filter(|t| t.counts()).collect();
        let expired = counting.iter().filter(|t| !t.fresh).count();
        prop_assert_eq!(found.nodes as usize, nodes.len());
        prop_assert_eq!(found.leases as usize, fleet.len() + malformed as usize);
        prop_assert_eq!((found.candidates as usize, found.expired as usize), (counting.len(), expired));
        let excluded: u32 = found.excluded.values().sum();
        prop_assert_eq!(excluded + found.candidates, found.leases, "every lease is counted once");
        prop_assert_eq!(found.excluded.get(&Exclusion::MalformedLease).copied().unwrap_or(0), malformed);
        for (number, zone) in ZONES.iter().enumerate() {
            let of = |t: &&&NodeTraits| t.zone == number;
            let all = counting.iter().filter(of).count();
            let gone = counting.iter().filter(of).filter(|t| !t.fresh).count();
            let count = found.zones.get(*zone).copied().unwrap_or_default();
            prop_assert_eq!((count.candidates as usize, count.expired as usize), (all, gone), "zone {}", zone);
        }
        let old = || fleet.iter().filter(|t| t.renew_time && !t.fresh);
        let lacks_machine = |t: &NodeTraits| t.exists && !t.not_managed && t.machine.is_none();
        let absent = old().filter(|t| match t.exists {
            true => lacks_machine(t) && !t.unhealthy && !t.in_place,
            false => t.machine == Some(MachinePhase::Other),
        });
        let absent = absent.count();
        let renewing = fleet.iter().any(|t| t.renew_time && t.fresh);
        let protected = |t: &NodeTraits| lacks_machine(t) || t.machine == Some(MachinePhase::Other);
        let nothing_left = leaseless == 0 && !fleet.iter().any(protected);
        let outcome = match (counting.len(), expired) {
            (0, _) if !renewing && nothing_left => Outcome::Healthy,
            (0, _) if !renewing => Outcome::Pending,
            (1, 1) => Outcome::TooFewCandidates,
            (all, gone) if all > 1 && gone * 5 >= all * 3 => Outcome::LeasesExpired,
            (all, gone) if absent > 0 && (gone + absent) * 5 >= (all + absent) * 3 => Outcome::Pending,
            _ => Outcome::Healthy,
        };
        prop_assert_eq!(&found.outcome, &outcome);
    }
}

/// Ten thousand million comparisons would not end before the test runner gives up; two look-ups for each node do.
#[test]
fn a_hundred_thousand_nodes_and_machines_are_matched() {
    const NODES: usize = 100_000;
    let name = |i| format!("shoot--core--crazy-worker-z1-{i:06}");
    let nodes: Vec<_> = (0..NODES).map(|i| node(&name(i))).collect();
    // The other way round, so that no neighbour is the right one.
    let machines: Vec<_> = { nodes.iter().rev() }
        .map(|node| machine(&node.name, MachinePhase::Other))
        .collect();
    let index = NodeIndex::new(&nodes, &machines, &ShootSettings::default());
    let (list, renewals) = listed_up_to_40(|_| nodes.iter().map(|node| lease(&node.name, Some(0))).collect());
    let found = assess(&list, &renewals, Some(&index), RULE, false, None);
    assert_eq!(found.outcome, Outcome::LeasesExpired);
    assert_eq!(found.expired as usize, NODES);
}

#[test]
fn the_next_change_is_the_first_that_the_list_has_not_seen() {
    for (crossing, next_expiry, expected) in [
        (None, None, None),
        (Some(30), None, Some(30)),
        (Some(30), Some(20), Some(20)),
        // A crossing by the external endpoint, which was judged.
        (Some(10), Some(20), Some(20)),
        (Some(9), None, None),
    ] {
        let found = Assessment {
            judged: at(10),
            crossing: crossing.map(at),
            next_expiry: next_expiry.map(at),
            ..nothing_found()
        };
        assert_eq!(found.next_change(), expected.map(at));
    }
}

#[test]
fn fractions_are_of_what_counts_and_of_all_leases() {
    let fractions = |leases, candidates, expired| {
        let found = Assessment {
            leases,
            candidates,
            expired,
            ..nothing_found()
        };
        (found.fraction(), found.eligible_fraction())
    };
    assert_eq!(fractions(8, 4, 1), (0.25, Some(0.5)));
    assert_eq!(fractions(8, 0, 0), (0.0, Some(0.0)));
    assert_eq!(fractions(0, 0, 0), (0.0, None));
}
