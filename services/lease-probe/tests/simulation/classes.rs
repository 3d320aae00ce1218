//! The classes of histories.

use crate::classes_of_failures as failures;
use crate::classes_of_nodes as nodes;
use crate::classes_of_outages as outages;
use crate::classes_of_small_shoots as small;
use crate::script::History;

/// Histories of one kind.
pub(crate) struct HistoryClass {
    pub(crate) name: &'static str,
    pub(crate) generate: fn(&'static str, u64) -> History,
    /// Why kube-controller-manager may be first: what it knows and no observer can. None where it must not be.
    pub(crate) may_be_late: Option<&'static str>,
    /// Why a verdict may be false: what nobody can know from outside.
    pub(crate) may_be_false: Option<&'static str>,
    /// One history of this class runs for this many of other classes. Classes that take long are rare.
    pub(crate) rarity: u64,
}

const fn class(name: &'static str, generate: fn(&'static str, u64) -> History) -> HistoryClass {
    HistoryClass {
        name,
        generate,
        may_be_late: None,
        may_be_false: None,
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
        self.may_be_late(why)
    }

    const fn one_in(mut self, rarity: u64) -> Self {
        self.rarity = rarity;
        self
    }
}

/// All of them.
pub(crate) fn all() -> Vec<HistoryClass> {
    vec![
        class("quiet", nodes::quiet),
        class("loss, interval 10 s", nodes::loss_10),
        class("loss, interval 30 s", nodes::loss_30),
        class(
            "loss of a share around the threshold",
            nodes::loss_around_threshold,
        ),
        class("loss one node after the other", nodes::creeping_loss).may_be_late(
            "with an interval of 30 s only 10 s between two lists count: etcd may have been away unseen (ADR 0013)",
        ),
        class("loss that heals", nodes::healed_loss),
        class("share that swings around the threshold", nodes::swinging_share).may_be_late(
            "with an interval of 30 s only 10 s between two lists count: etcd may have been away unseen (ADR 0013)",
        ),
        class("loss in a shoot of 2 or 3 nodes", nodes::small_loss),
        class("loss in a shoot of 50 nodes", nodes::large_loss),
        class("clocks off by up to 120 s", nodes::skewed_clocks),
        class("clocks off, loss", nodes::skewed_clocks_loss).may_be_late(
            "a clock that is off by less than a renew interval looks like a list that came late",
        ),
        class("clocks that are set", nodes::clock_steps).may_be_late(
            "kube-controller-manager takes nodes for dead whose clocks were set back; they live",
        ),
        class("clocks that are set, loss", nodes::clock_steps_loss).may_be_late(
            "a clock that is off by less than a renew interval looks like a list that came late",
        ),
        class("nodes join and leave", nodes::joins_and_leaves),
        class("nodes join and leave, loss", nodes::joins_and_leaves_loss).may_be_late(
            "which leases are eligible changes in the middle of the loss, and kube-controller-manager marks all nodes",
        ),
        class("machines terminate and conditions turn True", nodes::facts),
        class(
            "machines terminate and conditions turn True, loss",
            nodes::facts_loss,
        )
        .may_be_late(
            "which leases are eligible changes in the middle of the loss, and kube-controller-manager marks all nodes",
        ),
        class(
            "lease durations from 20 to 80 s, loss",
            nodes::lease_durations_loss,
        )
        .may_be_late(
            "kubelets that renew every 20 s may be silent for 41 s while they are connected (ADR 0001)",
        ),
        class("outage, refused", outages::refused),
        class("outage, hangs", outages::hangs),
        class("outage, black hole", outages::black_hole),
        class(
            "outage, black hole that connections do not survive",
            outages::forgotten,
        ),
        class(
            "outage, a restart with a hang before it",
            outages::hang_then_restart,
        ),
        class(
            "outage shorter than the time between two probes",
            outages::between_probes,
        ),
        class("loss before an outage", outages::loss_before).may_be_late(
            "an outage of less than 10 s does not reset kube-controller-manager, which counts through it",
        ),
        class("loss within an outage", outages::loss_within).may_be_late(
            "an outage of less than 10 s does not reset kube-controller-manager, which counts through it",
        ),
        class("loss after an outage", outages::loss_after).may_be_late(
            "an outage of less than 10 s does not reset kube-controller-manager, which counts through it",
        ),
        class("outage, HTTP/1.1 only", outages::http1),
        class("loss with an outage, HTTP/1.1 only", outages::http1_loss).may_be_late(
            "an outage of less than 10 s does not reset kube-controller-manager, which counts through it",
        ),
        class("flapping", outages::flapping).may_be_late(
            "kube-controller-manager marks living nodes whose renewals fail for 40 s",
        ),
        class("flapping, loss", outages::flapping_loss).may_be_late(
            "outages of less than 10 s do not reset kube-controller-manager, which counts through them",
        ),
        class("restart loop", outages::restart_loop).may_be_late(
            "kube-controller-manager marks living nodes whose renewals fail for 40 s",
        ),
        class("restart loop, loss", outages::restart_loop_loss).may_be_late(
            "outages of less than 10 s do not reset kube-controller-manager, which counts through them",
        ),
        class("prober restarts", outages::prober_restarts),
        class(
            "prober restarts around an outage",
            outages::prober_restarts_outage,
        ),
        class("prober restarts around a loss", outages::prober_restarts_loss).may_be_late(
            "a prober that has just started has seen no silence yet",
        ),
        class(
            "handover after 2 to 17 s around an outage",
            outages::handover_outage,
        ),
        class("handover after 2 to 17 s around a loss", outages::handover_loss).may_be_late(
            "a prober that has just started has seen no silence yet",
        ),
        class("prober cut off", outages::prober_cut),
        class("prober cut off, loss", outages::prober_cut_loss).may_be_late(
            "kube-controller-manager reaches the API server and lease-probe does not",
        ),
        class(
            "shared limiter, outage of all and loss of some",
            outages::shared_limiter,
        )
        .may_be_late(
            "an outage of less than 10 s does not reset kube-controller-manager, which counts through it",
        )
        .one_in(20),
        class("one failed request in a loss", failures::one_failure),
        class("one 429 in a loss", failures::one_throttled).may_be_late(
            "the API server asks lease-probe to leave it alone for 10 s",
        ),
        class("500 for 10 to 50 % of the requests", failures::errors),
        class("500 for 50 to 90 % of the requests", failures::many_errors).may_be_late(
            "kube-controller-manager marks living nodes whose renewals fail for 40 s",
        ),
        class("500 for 10 to 50 % of the requests, loss", failures::errors_loss).may_be_late(
            "most probes of a while happen to fail; kube-controller-manager has a watch",
        ),
        class(
            "500 for 50 to 90 % of the requests, loss",
            failures::many_errors_loss,
        )
        .may_be_late("the API server answers less than every second request of lease-probe"),
        class("429", failures::throttled),
        class("429, loss", failures::throttled_loss).may_be_late(
            "the API server asks lease-probe to leave it alone for 10 s each time",
        ),
        class("401 for lease-probe", failures::unauthorized),
        class("401 for lease-probe, loss", failures::unauthorized_loss).may_be_late(
            "the API server refuses lease-probe's credentials and not those of kube-controller-manager",
        ),
        class("401 or 403 for everybody", failures::refused_to_everybody).may_be_late(
            "kube-controller-manager marks living nodes whose renewals fail for 40 s",
        ),
        class("slow answers", failures::slow),
        class("slow answers, loss", failures::slow_loss).may_be_late(
            "lists take up to 8 s; kube-controller-manager has a watch",
        ),
        class("connections closed after each answer", failures::closes),
        class(
            "connections closed after each answer, loss",
            failures::closes_loss,
        )
        .may_be_late(
            "an outage of less than 10 s does not reset kube-controller-manager, which counts through it",
        ),
        class("idle connections closed", failures::closes_idle),
        class("idle connections closed, loss", failures::closes_idle_loss).may_be_late(
            "time after the end of a connection does not count until the next list, and that may be 5 s later",
        ),
        class("stale lists", failures::stale),
        class("stale lists, loss", failures::stale_loss).may_be_late(
            "lists are up to 8 s old; kube-controller-manager has a watch",
        ),
        class("external endpoint away", failures::external),
        class("external endpoint away, loss", failures::external_loss).may_be_late(
            "with an interval of 30 s only 10 s between two lists count: etcd may have been away unseen (ADR 0013)",
        ),
        class("outage, kubelets renew every 5 to 20 s", outages::lease_durations)
            .may_be_late("kube-controller-manager marks living nodes whose renewals fail for 40 s"),
        class("connections forgotten", outages::connections_forgotten),
        class("2 or 3 nodes: outage", small::outage),
        class(
            "2 or 3 nodes: prober restarts around an outage",
            small::prober_restarts_outage,
        ),
        class(
            "2 or 3 nodes: external endpoint away around an outage",
            small::external,
        ),
        class("anything", failures::anything).may_be_late("any of the above"),
    ]
}

/// Histories in which a false verdict is possible, because what happened cannot be known from outside. A test counts
/// them.
pub(crate) fn limits() -> Vec<HistoryClass> {
    let class = |name, generate, why| class(name, generate).may_be_false(why);
    const WRITES: &str = "the API server answers reads and refuses writes, for example with a full etcd";
    const REPLICA: &str = "connections of kubelets lead to another API server than that of the prober";
    const CLOCKS: &str = "all clocks are more than 3 s behind, so renewals look older than they are";
    const ERRORS: &str = "an API server that fails most requests at random answers those of the prober";
    const UNSEEN: &str = "an outage ended just before the prober started, so no prober saw it";
    const MANY: &str =
        "two kubelets lose more requests than the prober, in outages that follow each other within seconds";
    vec![
        class("writes refused for 5 to 22 s", outages::writes_refused, WRITES),
        class(
            "2 or 3 nodes: writes refused for 10 to 20 s",
            small::writes_refused,
            WRITES,
        ),
        class(
            "one of several API servers away",
            outages::one_replica_away,
            REPLICA,
        ),
        class(
            "2 or 3 nodes: one of several API servers away",
            small::one_replica_away,
            REPLICA,
        ),
        class(
            "clocks of all nodes 2 to 10 s behind, outage",
            outages::clocks_behind,
            CLOCKS,
        ),
        class(
            "2 or 3 nodes: clocks of all nodes 2 to 10 s behind, outage",
            small::clocks_behind,
            CLOCKS,
        ),
        class(
            "connections forgotten, clocks of all nodes up to 10 s behind",
            outages::connections_forgotten_clocks_behind,
            CLOCKS,
        ),
        class(
            "prober starts right after an outage",
            outages::prober_starts_after_outage,
            UNSEEN,
        ),
        class(
            "2 or 3 nodes: prober starts right after an outage",
            small::prober_starts_after_outage,
            UNSEEN,
        ),
        class(
            "2 or 3 nodes: 500 for 10 to 90 % of the requests",
            small::errors,
            ERRORS,
        ),
        class("outages in the rhythm of the probes", outages::periodic, MANY),
        class("2 or 3 nodes: two outages", small::two_outages, MANY),
        class("2 or 3 nodes: flapping", small::flapping, MANY),
        class(
            "2 to 6 nodes: a hang, a restart, and reads before writes",
            small::hang_and_restart,
            MANY,
        ),
        class("2 or 3 nodes: anything", small::anything, MANY),
    ]
}
