//! The classes of histories.

use crate::builder::Builder;
use crate::classes_of_absence as absence;
use crate::classes_of_faults as faults;
use crate::classes_of_inputs as inputs;
use crate::classes_of_nodes as nodes;
use crate::classes_of_outages as outages;
use crate::classes_of_pools as pools;
use crate::classes_of_witnesses as witnesses;
use crate::classes_of_writes as writes;
use crate::random::SECOND;
use crate::script::History;
use crate::timeline::Behaviour;

/// Histories of one kind.
pub(crate) struct HistoryClass {
    pub(crate) name: &'static str,
    /// Its events, one after the other added to a history in which all is well.
    steps: &'static [fn(&mut Builder)],
    /// Why kube-controller-manager may be first: what it knows and no observer can. None where it must not be.
    pub(crate) may_be_late: Option<&'static str>,
    /// Why a verdict may be false: what nobody can know from outside.
    pub(crate) may_be_false: Option<&'static str>,
    /// Of a thousand histories at most this many may have a false verdict.
    pub(crate) most_false: usize,
    /// One history of this class runs for this many of other classes. Classes that take long are rare.
    pub(crate) rarity: u64,
}

pub(crate) const fn class(name: &'static str, steps: &'static [fn(&mut Builder)]) -> HistoryClass {
    HistoryClass {
        name,
        steps,
        may_be_late: None,
        may_be_false: None,
        most_false: 0,
        rarity: 1,
    }
}

impl HistoryClass {
    const fn may_be_late(mut self, why: &'static str) -> Self {
        self.may_be_late = Some(why);
        self
    }

    /// A verdict that may be false may also be late.
    const fn may_be_false(mut self, why: &'static str) -> Self {
        self.may_be_false = Some(why);
        self.most_false = 40;
        self.may_be_late(why)
    }

    const fn at_most(mut self, of_a_thousand: usize) -> Self {
        self.most_false = of_a_thousand;
        self
    }

    const fn one_in(mut self, rarity: u64) -> Self {
        self.rarity = rarity;
        self
    }

    pub(crate) fn generate(&self, seed: u64) -> History {
        let mut history = Builder::new(self.name, seed);
        for step in self.steps {
            step(&mut history);
        }
        history.build()
    }
}

/// An outage of any kind.
const UP_TO_60_S: fn(&mut Builder) = |h| _ = outages::outage(h, 0.5, 60.0);

const LOSS_AT_60_TO_140_S: fn(&mut Builder) = |h| h.lose_between(60 * SECOND, 140 * SECOND);

const LOSS_AT_50_TO_150_S: fn(&mut Builder) = |h| h.lose_between(50 * SECOND, 150 * SECOND);

const LONG_PAUSE: &str = "kubelets have to be silent for the whole proof after the external endpoint fails";
const SMALL_SKEW: &str = "a clock that is off by less than a renew interval looks like a list that came late";
const CANDIDATES: &str =
    "eligible leases change in the middle of the loss; kube-controller-manager marks all nodes";
const SHORT_OUTAGES: &str =
    "outages of less than 10 s do not reset kube-controller-manager, which counts through them";
const FAILED_RENEWALS: &str = "kube-controller-manager marks living nodes whose renewals fail for 40 s";
const IDLE: &str = "an API server that nobody else uses shows only every 10 s that it takes writes";
const SHORT_GRACE: &str = "the grace period is shorter than the silence that proves a loss takes";
const SLOW_LISTS: &str = "lists are up to 8 s late; kube-controller-manager has a watch";
const THROTTLED: &str = "the API server asks lease-probe to leave it alone for 10 s each time";
const NO_CREDENTIALS: &str =
    "the API server refuses lease-probe's credentials and not those of kube-controller-manager";
const ABSENT: &str = "what cannot be listed cannot be judged";
const CAUGHT_UP: &str =
    "an API server that has caught up shows old renewals late, so its witness confirms some seconds later";
const JUST_STARTED: &str = "a prober that has just started has seen no silence yet";

/// All of them.
pub(crate) fn all() -> Vec<HistoryClass> {
    vec![
        class("quiet", &[nodes::quiet]),
        class("loss, interval 10 s", &[|h| h.interval = 10 * SECOND, nodes::loss]),
        class("loss, interval 30 s", &[nodes::probed_every_30_s, nodes::loss]),
        class("loss of a share around the threshold", &[nodes::loss_around_threshold]),
        class("loss one node after the other", &[nodes::creeping_loss]),
        class("loss that heals", &[nodes::healed_loss]),
        class("share that swings around the threshold", &[nodes::swinging_share]).may_be_late(
            "a node that renews again stays Unknown until its kubelet has posted its status, and counts until then",
        ),
        class("loss in a shoot of 2 or 3 nodes", &[nodes::two_or_three_nodes, nodes::loss]),
        class("loss in a shoot of 50 nodes", &[|h| h.set_nodes(50), nodes::loss]),
        class("clocks off by up to 120 s", &[nodes::skewed_clocks, nodes::quiet]),
        class("clocks off, loss", &[nodes::skewed_clocks, nodes::loss]).may_be_late(SMALL_SKEW),
        class("clocks that are set", &[nodes::clock_steps]).may_be_late(
            "kube-controller-manager takes nodes for dead whose clocks were set back; they live",
        ),
        class("clocks that are set, loss", &[nodes::clock_steps, nodes::loss]).may_be_late(SMALL_SKEW),
        class("nodes join and leave", &[nodes::joins_and_leaves]),
        class("nodes join and leave, loss", &[nodes::joins_and_leaves, nodes::loss]).may_be_late(CANDIDATES),
        class("machines terminate and conditions turn True", &[nodes::facts]),
        class("machines terminate and conditions turn True, loss", &[nodes::facts, nodes::loss])
            .may_be_late(CANDIDATES),
        class(
            "lease durations from 20 to 80 s, loss",
            &[|h| nodes::lease_durations(h, &[20, 30, 60, 80]), nodes::loss],
        )
        .may_be_late(
            "kubelets that renew every 20 s may be silent for 41 s while they are connected (ADR 0001)",
        ),
        class("outage, refused", &[|h| outages::outage_of(h, Behaviour::Refuses)]),
        class("outage, hangs", &[|h| outages::outage_of(h, Behaviour::Hangs)]),
        class("outage, black hole", &[|h| outages::outage_of(h, Behaviour::BlackHole { forgets: 0.0 })]),
        class(
            "outage, black hole that connections do not survive",
            &[|h| outages::outage_of(h, Behaviour::BlackHole { forgets: 0.7 })],
        ),
        class("outage, a restart with a hang before it", &[outages::hang_then_restart]),
        class(
            "outage shorter than the time between two probes",
            &[nodes::probed_every_30_s, |h| _ = outages::outage(h, 8.0, 26.0)],
        ),
        class("loss before an outage", &[outages::loss_before]).may_be_late(SHORT_OUTAGES),
        class("loss within an outage", &[outages::loss_within]).may_be_late(SHORT_OUTAGES),
        class("loss after an outage", &[outages::loss_after]).may_be_late(SHORT_OUTAGES),
        class("outage, HTTP/1.1 only", &[|h| h.shoot().server.speaks_http2 = false, outages::of_any_kind]),
        class(
            "loss with an outage, HTTP/1.1 only",
            &[|h| h.shoot().server.speaks_http2 = false, outages::loss_before_within_or_after],
        )
        .may_be_late(SHORT_OUTAGES),
        class("flapping", &[outages::flapping]).may_be_late(FAILED_RENEWALS),
        class("flapping, loss", &[outages::flapping, LOSS_AT_50_TO_150_S])
            .may_be_late(SHORT_OUTAGES),
        class("restart loop", &[outages::restart_loop]).may_be_late(FAILED_RENEWALS),
        class("restart loop, loss", &[outages::restart_loop, LOSS_AT_50_TO_150_S])
            .may_be_late(SHORT_OUTAGES),
        class("prober restarts", &[outages::prober_restarts]),
        class("prober restarts around an outage", &[|h| outages::hand_over_around_outage(h, 0.5, 5.0)]),
        class("prober restarts around a loss", &[|h| outages::hand_over_around_loss(h, 0.5, 5.0)])
            .may_be_late(JUST_STARTED),
        class("handover after 2 to 17 s around an outage", &[|h| outages::hand_over_around_outage(h, 2.0, 17.0)]),
        class("handover after 2 to 17 s around a loss", &[|h| outages::hand_over_around_loss(h, 2.0, 17.0)])
            .may_be_late(JUST_STARTED),
        class("prober cut off", &[outages::prober_cut]),
        class("prober cut off, loss", &[outages::prober_cut, LOSS_AT_50_TO_150_S])
            .may_be_late("kube-controller-manager reaches the API server and lease-probe does not"),
        class("prober cut off, loss that heals", &[outages::prober_cut_in_a_loss_that_heals])
            .may_be_late("kube-controller-manager reaches the API server and lease-probe does not"),
        class("prober stopped", &[outages::prober_stopped]),
        class("prober stopped, outage", &[outages::prober_stopped, UP_TO_60_S]),
        class("prober stopped, loss", &[outages::prober_stopped, LOSS_AT_50_TO_150_S])
            .may_be_late("a process that is stopped sees nothing"),
        class("prober stopped, loss that heals", &[outages::prober_stopped_in_a_loss_that_heals])
            .may_be_late("a process that is stopped sees nothing"),
        class("shared limiter, outage of all and loss of some", &[outages::shared_limiter])
            .may_be_late(SHORT_OUTAGES)
            .one_in(20),
        class("one failed request in a loss", &[|h| faults::failing_once(h, &[500, 503])])
            .may_be_late("a failure may end an outage of 10 s that no list saw (ADR 0001)"),
        class("one 429 in a loss", &[|h| faults::failing_once(h, &[429])])
            .may_be_late(THROTTLED),
        class("500 for 10 to 50 % of the requests", &[|h| faults::errors(h, 0.1, 0.5)]),
        class("500 for 50 to 90 % of the requests", &[|h| faults::errors(h, 0.5, 0.9)]).may_be_late(FAILED_RENEWALS),
        class(
            "500 for 10 to 50 % of the requests, loss",
            &[|h| faults::errors(h, 0.1, 0.5), LOSS_AT_60_TO_140_S],
        )
        .may_be_late("most probes of a while happen to fail; kube-controller-manager has a watch"),
        class(
            "500 for 50 to 90 % of the requests, loss",
            &[|h| faults::errors(h, 0.5, 0.9), LOSS_AT_60_TO_140_S],
        )
        .may_be_late("the API server answers less than every second request of lease-probe"),
        class("429", &[faults::throttled]),
        class("429, loss", &[faults::throttled, LOSS_AT_60_TO_140_S])
            .may_be_late(THROTTLED),
        class("401 for lease-probe", &[faults::unauthorized]),
        class(
            "401 for lease-probe, loss",
            &[faults::unauthorized, LOSS_AT_60_TO_140_S],
        )
        .may_be_late(NO_CREDENTIALS),
        class("401 or 403 for everybody", &[faults::refused_to_everybody]).may_be_late(FAILED_RENEWALS),
        class("slow answers", &[faults::slow]),
        class("slow answers, loss", &[faults::slow, LOSS_AT_60_TO_140_S])
            .may_be_late(SLOW_LISTS),
        class("connections closed after each answer", &[faults::closes]),
        class(
            "connections closed after each answer, loss",
            &[faults::closes, LOSS_AT_60_TO_140_S],
        )
        .may_be_late(SHORT_OUTAGES),
        class("idle connections closed", &[faults::closes_idle, |h| _ = outages::outage(h, 0.5, 40.0)]),
        class(
            "idle connections closed, loss",
            &[faults::closes_idle, LOSS_AT_60_TO_140_S],
        )
        .may_be_late(
            "time after the end of a connection does not count until the next list, and that may be 5 s later",
        ),
        class("stale lists", &[faults::stale]),
        class("stale lists, loss", &[faults::stale, LOSS_AT_60_TO_140_S])
            .may_be_late(SLOW_LISTS),
        class("external endpoint away", &[faults::external_away, faults::perhaps_outage]),
        class(
            "external endpoint away, loss",
            &[faults::external_away, faults::nodes_cut_off_with_external],
        )
        .may_be_late(LONG_PAUSE),
        class(
            "outage, kubelets renew every 5 to 20 s",
            &[|h| nodes::lease_durations(h, &[20, 20, 30, 60, 80]), UP_TO_60_S],
        )
        .may_be_late(FAILED_RENEWALS),
        class("connections forgotten", &[outages::connections_forgotten]),
        class("2 or 3 nodes: outage", &[nodes::two_or_three_nodes, UP_TO_60_S]),
        class(
            "2 or 3 nodes: prober restarts around an outage",
            &[nodes::two_or_three_nodes, |h| outages::hand_over_around_outage(h, 0.5, 17.0)],
        ),
        class(
            "2 or 3 nodes: external endpoint away around an outage",
            &[nodes::two_or_three_nodes, faults::external_away_around_outage],
        ),
        class(
            "one dead of ten nodes, loss, interval 30 s",
            &[writes::one_dead_of_ten, nodes::probed_every_30_s, nodes::loss],
        ),
        class(
            "a third of the nodes dead, loss, interval 30 s",
            &[writes::a_third_dead, nodes::probed_every_30_s, nodes::loss],
        ),
        class(
            "a second loss after a recovery, interval 30 s",
            &[nodes::probed_every_30_s, writes::loss_after_a_recovery],
        ),
        class("etcd hangs for up to 60 s", &[|h| _ = writes::etcd_hangs(h, 1.0, 60.0)]),
        class("slow writes, fast reads", &[writes::slow_writes]),
        class(
            "writes refused for 24 to 28 s",
            &[|h| writes::writes_refused(h, 24.0, 28.0)],
        )
        .may_be_late(FAILED_RENEWALS),
        class(
            "writes refused for 30 to 300 s",
            &[|h| writes::writes_refused(h, 30.0, 300.0)],
        )
        .may_be_late(FAILED_RENEWALS),
        class("gateway fails over", &[writes::gateway_fails_over]),
        class("stale lists that go back, in a loss", &[writes::stale_lists_in_a_loss]).may_be_late(CANDIDATES),
        class("etcd restored", &[writes::etcd_restored]).may_be_late(FAILED_RENEWALS),
        class("etcd restored in a loss", &[writes::etcd_restored_in_a_loss]),
        class(
            "grace 20 s, outage",
            &[|h| writes::grace(h, &[20]), outages::survived_up_to_60_s],
        )
        .may_be_late(FAILED_RENEWALS),
        class("grace 20 s, loss", &[|h| writes::grace(h, &[20]), nodes::loss]).may_be_late(SHORT_GRACE),
        class(
            "grace 26 s, outage",
            &[|h| writes::grace(h, &[26]), outages::survived_up_to_60_s],
        )
        .may_be_late(FAILED_RENEWALS),
        class("grace 26 s, loss", &[|h| writes::grace(h, &[26]), nodes::loss]).may_be_late(SHORT_GRACE),
        class(
            "grace 30 s, outage",
            &[|h| writes::grace(h, &[30]), outages::survived_up_to_60_s],
        )
        .may_be_late(FAILED_RENEWALS),
        class("grace 30 s, loss", &[|h| writes::grace(h, &[30]), nodes::loss]).may_be_late(IDLE),
        class("grace 50, 120 and 600 s, outage", &[|h| writes::grace(h, &[50, 120, 600]), UP_TO_60_S]),
        class(
            "grace 50, 120 and 600 s, gateway fails over",
            &[|h| writes::grace(h, &[50, 120, 600]), writes::gateway_fails_over],
        ),
        class("grace 50, 120 and 600 s, loss", &[nodes::loss, |h| writes::grace(h, &[50, 120, 600])]),
        class("objects absent", &[absence::objects_absent]).may_be_late(FAILED_RENEWALS),
        class("objects absent around a loss", &[absence::absent_around_a_loss]).may_be_late(ABSENT),
        class("objects absent in a loss", &[absence::absent_in_a_loss]).may_be_late(ABSENT),
        class("objects absent over a restart of the prober", &[absence::absent_over_a_restart]).may_be_late(ABSENT),
        class("scaled to zero in a loss", &[absence::scaled_to_zero_in_a_loss]).may_be_late(CANDIDATES),
        class("Machines without the label node", &[absence::machines_without_labels, nodes::quiet]),
        class("Machines without the label node, loss", &[absence::machines_without_labels, nodes::loss]),
        class("conditions that appear and stick in a loss", &[absence::conditions_stick_in_a_loss]),
        class("kubeconfig rotated", &[inputs::kubeconfig_rotated]),
        class("kubeconfig rotated around a loss", &[inputs::kubeconfig_rotated, nodes::loss]),
        class("kubeconfig unusable, outage", &[|h| _ = inputs::kubeconfig_unusable(h), UP_TO_60_S]),
        class("kubeconfig unusable before a loss", &[inputs::kubeconfig_unusable_before_a_loss]),
        class(
            "kubeconfig unusable around a loss",
            &[|h| _ = inputs::kubeconfig_unusable(h), nodes::loss],
        )
        .may_be_late(NO_CREDENTIALS),
        class(
            "Machines refused before a loss, one of ten nodes dead",
            &[writes::one_dead_of_ten, inputs::machines_refused_before_a_loss],
        ),
        class("grace period changes, outage", &[inputs::grace_changes, outages::survived_up_to_60_s])
            .may_be_late(FAILED_RENEWALS),
        class("grace period changes around a loss", &[inputs::grace_changes, nodes::loss]),
        class("settings change, outage", &[inputs::settings_change, UP_TO_60_S]),
        class("settings change around a loss", &[inputs::settings_change, nodes::loss])
            .may_be_late("a threshold that becomes lower in the middle of the loss counts from then on"),
        class("node names reused", &[inputs::names_reused]),
        class("node names reused, loss", &[inputs::names_reused, nodes::loss]).may_be_late(CANDIDATES),
        class("two witnesses, outage", &[witnesses::two_witnesses, UP_TO_60_S]),
        class("two witnesses, gateway fails over", &[witnesses::two_witnesses, writes::gateway_fails_over]),
        class("two witnesses, loss", &[witnesses::two_witnesses, nodes::loss]),
        class("two witnesses, one on a stale API server", &[witnesses::two_witnesses, |h| _ = witnesses::one_stale(h)]),
        class(
            "two witnesses, one on a stale API server, loss",
            &[witnesses::two_witnesses, witnesses::one_stale_in_a_loss],
        ).may_be_late(CAUGHT_UP),
        class(
            "two witnesses, one on a stale API server, loss that heals",
            &[witnesses::two_witnesses, witnesses::one_stale_in_a_loss_that_heals],
        ).may_be_late(CAUGHT_UP),
        class(
            "two witnesses, one on a partitioned API server",
            &[witnesses::two_witnesses, |h| _ = witnesses::one_partitioned(h)],
        ),
        class(
            "two witnesses, one on a partitioned API server, loss",
            &[witnesses::two_witnesses, witnesses::one_partitioned_in_a_loss],
        ).may_be_late(CAUGHT_UP),
        class("two witnesses, one killed", &[witnesses::two_witnesses, witnesses::one_killed, UP_TO_60_S]),
        class(
            "two witnesses, one killed around a loss",
            &[witnesses::two_witnesses, witnesses::one_killed_around_a_loss],
        ),
        class(
            "two witnesses, one restarts with another clock around a loss",
            &[witnesses::two_witnesses, witnesses::one_restarts_with_another_clock_around_a_loss],
        )
        .may_be_late(SMALL_SKEW),
        class(
            "two witnesses, a rolling update around a loss",
            &[witnesses::two_witnesses, witnesses::rolling_update_around_a_loss],
        ),
        class(
            "pool rolled around a loss",
            &[pools::one_three_or_ten_nodes, pools::rolled_around_a_loss],
        )
        .may_be_late(CANDIDATES),
        class(
            "pool rolled around a loss that heals",
            &[pools::one_three_or_ten_nodes, pools::rolled_around_a_loss_that_heals],
        )
        .may_be_late(CANDIDATES),
        class("pool grown before a loss", &[pools::one_three_or_ten_nodes, pools::grown_before_a_loss]),
        class(
            "pool scaled to zero and back before a loss",
            &[pools::one_three_or_ten_nodes, pools::scaled_to_zero_and_back_before_a_loss],
        ),
        class(
            "pool grown, gateway fails over",
            &[pools::one_three_or_ten_nodes, |h| _ = pools::scale_up(h), writes::gateway_fails_over],
        ),
        class(
            "pool rolled, external endpoint flaps, outage",
            &[pools::one_three_or_ten_nodes, |h| _ = pools::roll(h), faults::external_flaps, UP_TO_60_S],
        ),
        class(
            "pool rolled, external endpoint flaps, loss",
            &[pools::one_three_or_ten_nodes, pools::rolled_around_a_loss, faults::external_flaps],
        )
        .may_be_late(CANDIDATES),
        class("pool updated in place, loss that heals", &[pools::updated_in_place, nodes::healed_loss])
            .may_be_late(CANDIDATES),
        class(
            "two witnesses, a rolling update around a loss, gateway fails over",
            &[witnesses::two_witnesses, witnesses::rolling_update_around_a_loss, writes::gateway_fails_over],
        )
        .may_be_late(SHORT_OUTAGES),
        class(
            "two witnesses, one learns of a mended kubeconfig late, loss",
            &[witnesses::two_witnesses, witnesses::one_learns_late, inputs::kubeconfig_unusable_before_a_loss],
        ),
        class("anything", &[faults::anything]).may_be_late("any of the above"),
    ]
}

/// Histories in which a false verdict is possible, because what happened cannot be known from outside. A test counts
/// them.
pub(crate) fn limits() -> Vec<HistoryClass> {
    const WRITES: &str = "the API server answers reads and refuses writes, for example with a full etcd";
    const REPLICA: &str = "connections of kubelets lead to another API server than that of the prober";
    const CLOCKS: &str = "all clocks are more than 3 s behind, so renewals look older than they are";
    const ERRORS: &str = "an API server that fails most requests at random answers those of the prober";
    const UNSEEN: &str = "an outage ended just before the prober started, so no prober saw it";
    const MANY: &str =
        "two kubelets lose more requests than the prober, in outages that follow each other within seconds";
    const HANG: &str = "writes wait unseen, and nothing shows when they were stored";
    const KUBELETS: &str = "the API server takes everybody's writes but those of kubelets";
    const CONNECTS: &str = "new connections of kubelets are slow, those of the prober are not needed";
    const GRACE: &str = "kubelets are back later than a short grace period allows to wait";
    vec![
        class(
            "prober starts with a clock 5 to 120 s off, connections forgotten",
            &[writes::prober_starts_with_a_clock_that_is_off],
        )
        .may_be_false(CLOCKS),
        class(
            "etcd hangs for 8 to 9.5 s, then a gateway fails over",
            &[nodes::probed_every_30_s, |h| {
                writes::etcd_hangs_then_gateway_fails_over(h, 8.0, 9.5)
            }],
        )
        .may_be_false(HANG)
        .at_most(5),
        class(
            "etcd hangs for 4 to 14 s, then a gateway fails over",
            &[|h| writes::etcd_hangs_then_gateway_fails_over(h, 4.0, 14.0)],
        )
        .may_be_false(HANG)
        .at_most(5),
        class(
            "two witnesses, etcd hangs for 8 to 9.5 s, then a gateway fails over",
            &[witnesses::two_witnesses, nodes::probed_every_30_s, |h| {
                writes::etcd_hangs_then_gateway_fails_over(h, 8.0, 9.5)
            }],
        )
        .may_be_false(HANG)
        .at_most(5),
        class(
            "two witnesses, etcd hangs for 4 to 14 s, then a gateway fails over",
            &[witnesses::two_witnesses, |h| {
                writes::etcd_hangs_then_gateway_fails_over(h, 4.0, 14.0)
            }],
        )
        .may_be_false(HANG)
        .at_most(5),
        class(
            "nodes cut off for 4 to 20 s, then connections forgotten",
            &[writes::nodes_cut_then_connections_forgotten],
        )
        .may_be_false(HANG)
        .at_most(5),
        class(
            "writes of kubelets refused for 20 to 60 s",
            &[writes::kubelets_refused],
        )
        .may_be_false(KUBELETS)
        .at_most(300),
        class(
            "gateway fails over, connections take 4 to 5 s",
            &[|h| writes::slow_connections(h, 4.0, 5.0)],
        )
        .may_be_false(CONNECTS),
        class(
            "gateway fails over, connections take 6 to 7 s",
            &[|h| writes::slow_connections(h, 6.0, 7.0)],
        )
        .may_be_false(CONNECTS),
        class(
            "grace 20 s, gateway fails over",
            &[|h| writes::grace(h, &[20]), writes::gateway_fails_over],
        )
        .may_be_false(GRACE)
        .at_most(350),
        class(
            "grace 26 s, gateway fails over",
            &[|h| writes::grace(h, &[26]), writes::gateway_fails_over],
        )
        .may_be_false(GRACE)
        .at_most(350),
        class(
            "grace 30 s, gateway fails over",
            &[|h| writes::grace(h, &[30]), writes::gateway_fails_over],
        )
        .may_be_false(GRACE)
        .at_most(60),
        class(
            "writes refused for 5 to 22 s",
            &[|h| writes::writes_refused(h, 5.0, 22.0)],
        )
        .may_be_false(WRITES),
        class(
            "2 or 3 nodes: writes refused for 10 to 20 s",
            &[nodes::two_or_three_nodes, |h| {
                writes::writes_refused(h, 10.0, 20.4)
            }],
        )
        .may_be_false(WRITES),
        class("one of several API servers away", &[outages::one_replica_away]).may_be_false(REPLICA),
        class(
            "2 or 3 nodes: one of several API servers away",
            &[nodes::two_or_three_nodes, outages::one_replica_away],
        )
        .may_be_false(REPLICA),
        class(
            "clocks of all nodes 2 to 10 s behind, outage",
            &[
                |h| nodes::clocks_behind(h, 2.0, 10.0),
                |h| _ = outages::outage(h, 0.5, 40.0),
            ],
        )
        .may_be_false(CLOCKS),
        class(
            "2 or 3 nodes: clocks of all nodes 2 to 10 s behind, outage",
            &[
                nodes::two_or_three_nodes,
                |h| nodes::clocks_behind(h, 2.0, 10.0),
                |h| _ = outages::outage(h, 0.5, 40.0),
            ],
        )
        .may_be_false(CLOCKS),
        class(
            "connections forgotten, clocks of all nodes up to 10 s behind",
            &[
                |h| nodes::clocks_behind(h, 0.5, 10.0),
                outages::connections_forgotten,
            ],
        )
        .may_be_false(CLOCKS),
        class(
            "prober starts right after an outage",
            &[outages::prober_starts_after_outage],
        )
        .may_be_false(UNSEEN),
        class(
            "2 or 3 nodes: prober starts right after an outage",
            &[nodes::two_or_three_nodes, outages::prober_starts_after_outage],
        )
        .may_be_false(UNSEEN),
        class(
            "2 or 3 nodes: 500 for 10 to 90 % of the requests",
            &[nodes::two_or_three_nodes, |h| faults::errors(h, 0.1, 0.9)],
        )
        .may_be_false(ERRORS),
        class("outages in the rhythm of the probes", &[outages::periodic]).may_be_false(MANY),
        class(
            "2 or 3 nodes: two outages",
            &[nodes::two_or_three_nodes, outages::two_outages],
        )
        .may_be_false(MANY),
        class(
            "2 or 3 nodes: flapping",
            &[nodes::two_or_three_nodes, outages::flapping],
        )
        .may_be_false(MANY),
        class(
            "2 to 6 nodes: a hang, a restart, and reads before writes",
            &[nodes::two_to_six_nodes, outages::short_hang_and_restart],
        )
        .may_be_false(MANY),
        class(
            "2 or 3 nodes: anything",
            &[nodes::two_or_three_nodes, faults::anything],
        )
        .may_be_false(MANY),
    ]
}
