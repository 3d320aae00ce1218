//! An API server that is away for a while: nobody can renew, and nobody is lost.

use std::ops::Range;

use lease_probe::domain::outcome::Outcome;
use proptest::prelude::*;

use crate::shoot::{EXPIRY_AGE, LASTS, Millis, Observed, RENEW_INTERVAL, Shoot, interval, run};

/// A kubelet whose request failed pauses for so long, then for twice as long each time. Source: component-helpers,
/// `apimachinery/lease/controller.go`.
const FIRST_PAUSE: Millis = 200;

/// But for no longer than this. Source: `maxBackoff`, the same file.
const LONGEST_PAUSE: Millis = 7_000;

/// No prober looks away for as long: it would miss a crossing.
const SEEN: Millis = 25_000;

/// After its pause for failures (30 s and a fifth) a prober looks again.
const FIRST_LOOK: Millis = 36_000;

/// What kubelets get after an outage: 2.25 renew intervals.
const TIME_TO_RENEW: Millis = 22_500;

/// Two probes, and what keeps them apart.
const PROBES: Millis = 2_600;

/// A kubelet whose API server is away from time to time.
#[derive(Debug, Clone)]
struct Kubelet {
    phase: Millis,
    /// By how much each of its intervals is longer.
    jitter: Vec<Millis>,
    /// After an outage that is long enough to be seen it can read its Lease, but not write it yet: then it waits for its
    /// next turn.
    fails_once_more: bool,
}

impl Kubelet {
    /// When it renews until it dies.
    fn renewals(&self, outages: &[Range<Millis>], dies: Millis) -> Vec<Millis> {
        let mut now = self.phase - RENEW_INTERVAL;
        let mut renewals = Vec::new();
        let mut pause = FIRST_PAUSE;
        let mut fails = false;
        let mut jitter = self.jitter.iter().cycle();
        while now < dies {
            if let Some(outage) = outages.iter().find(|outage| outage.contains(&now)) {
                fails = self.fails_once_more && outage.end - outage.start >= SEEN;
                now += pause;
                pause = (2 * pause).min(LONGEST_PAUSE);
                continue;
            }
            if !std::mem::take(&mut fails) {
                renewals.push(now);
            }
            pause = FIRST_PAUSE;
            now += RENEW_INTERVAL + jitter.next().copied().unwrap_or(0);
        }
        renewals
    }
}

fn kubelet() -> impl Strategy<Value = Kubelet> {
    let jitter = prop::collection::vec(0..400_i64, 7);
    (0..RENEW_INTERVAL, jitter, prop::bool::ANY).prop_map(|(phase, jitter, fails_once_more)| Kubelet {
        phase,
        jitter,
        fails_once_more,
    })
}

/// Kubelets that all die at the same moment.
fn shoots(nodes: usize, dies: impl Strategy<Value = Millis>) -> impl Strategy<Value = Shoot> {
    // Up to a minute each.
    let outages = prop::collection::vec((20_000..90_000_i64, 100..60_000_i64), 1..3);
    let kubelets = prop::collection::vec(kubelet(), nodes);
    let take = 1..400_i64;
    (kubelets, outages, dies, take.clone(), take).prop_map(
        |(kubelets, outages, dies, leases_take, nodes_take)| {
            let mut end = 0;
            let outages: Vec<_> = outages
                .into_iter()
                .map(|(after, lasts)| {
                    let start = end + after;
                    end = start + lasts;
                    start..end
                })
                .collect();
            let renewals = kubelets.iter().map(|kubelet| kubelet.renewals(&outages, dies));
            Shoot {
                renewals: renewals.collect(),
                leases_take,
                nodes_take,
                outages,
            }
        },
    )
}

fn losses(observed: &Observed) -> Vec<Millis> {
    let losses = observed.told.iter().filter(|(_, outcome)| outcome.is_loss());
    losses.map(|(at, _)| *at).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// However long it lasts, wherever it falls between two probes, and however few probes see it.
    #[test]
    fn an_outage_of_the_api_server_is_no_loss(
        shoot in (2_usize..14).prop_flat_map(|nodes| shoots(nodes, Just(LASTS))), interval in interval(),
    ) {
        let observed = run(shoot.clone(), interval);
        let told = losses(&observed);
        prop_assert!(told.is_empty(), "told at {:?}; outages {:?}, probes {:?}", told, shoot.outages, observed.probes);
    }

    /// Where nobody was in the way of the kubelets, 30 s after the last renewal; else as soon as they had the time to come
    /// back.
    #[test]
    fn a_loss_before_within_or_after_an_outage_is_told(
        shoot in (2_usize..14).prop_flat_map(|nodes| shoots(nodes, 30_000..LASTS / 2)), interval in interval(),
    ) {
        let observed = run(shoot.clone(), interval);
        let last = shoot.renewals.iter().filter_map(|renewals| renewals.last()).max();
        let back = shoot.outages.last().map(|outage| outage.end + FIRST_LOOK);
        let by = (last.unwrap() + EXPIRY_AGE).max(back.unwrap() + TIME_TO_RENEW) + PROBES;
        prop_assert_eq!(
            observed.at(by),
            &Outcome::LeasesExpired,
            "at {} ms; outages {:?}, probes {:?}",
            by,
            shoot.outages,
            observed.probes
        );
    }
}
