//! The kinds of faults.

use std::sync::Arc;

use rand::Rng;

use super::engine::{Simulation, ms};

/// How much goes wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    /// Expected number of faults per second and replica. At 0 no request is lost or late either.
    pub(super) rate: f64,
    /// True if no watch brings anything, ever.
    pub(super) deaf: bool,
    /// True if Leases are deleted by hand.
    pub(super) by_hand: bool,
}

/// Nothing goes wrong.
pub(super) const CALM: Faults = Faults {
    rate: 0.0,
    deaf: false,
    by_hand: false,
};

impl Simulation {
    /// Something happens to a replica, or to its Lease.
    pub(super) fn fault(&mut self, replica: usize, faults: Faults) {
        let now = self.now;
        let Self {
            rng, replicas, store, ..
        } = self;
        let place = &mut replicas[replica];
        let Some(process) = &mut place.process else { return };
        let long = ms(rng.random_range(500..40_000));
        match rng.random_range(0..9) {
            0 => {
                let soon = rng.random_bool(0.5);
                place.restart = now + if soon { ms(100) } else { long };
                if place.pod.is_some() && rng.random_bool(0.3) {
                    place.pod = Some(rng.random::<u64>().to_string().into());
                }
                self.kill(replica);
            }
            1 | 2 => process.paused = now + long,
            3 => process.cut_off = now + long,
            4 => process.watch_stalled = now + long,
            // A watch that starts anew from a cache that lags behind.
            5 => process.watched = process.watched.saturating_sub(rng.random_range(0..20)),
            6 if faults.by_hand => store.delete(&Arc::clone(&process.identity), None),
            7 => process.state.leave(),
            _ => {
                process.cut_off = now + long;
                process.watch_stalled = now + long;
            }
        }
    }
}

/// Where processes live.
impl Simulation {
    /// Every replica lives in a Pod of its own.
    pub(super) fn give_pods(&mut self) {
        for replica in &mut self.replicas {
            replica.pod = Some(self.rng.random::<u64>().to_string().into());
        }
    }

    /// All processes live in one Pod.
    pub(super) fn put_all_in_one_pod(&mut self) {
        for replica in &mut self.replicas {
            replica.pod = Some("pod".into());
        }
    }

    /// The container of a replica dies and is started again in its Pod.
    pub(super) fn restart(&mut self, replica: usize) {
        self.replicas[replica].restart = self.now + ms(100);
        self.kill(replica);
    }
}
