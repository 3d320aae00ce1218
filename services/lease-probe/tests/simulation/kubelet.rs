//! A kubelet as far as others see it: when it renews its Lease and when it can report its status.
//!
//! Written after k8s.io/component-helpers/apimachinery/lease/controller.go and pkg/kubelet/kubelet_node_status.go of
//! Kubernetes 1.36.

use crate::http_client::{HttpClient, Response};
use crate::network::NetworkPath;
use crate::node_lifecycle_input::{KubeletHistory, LeaseWrite};
use crate::random::{MILLISECOND, Micros, Random, SECOND};
use crate::timeline::FOREVER;

/// PUTs in a row in a turn (`maxUpdateRetries`).
const PUTS: usize = 5;

/// Pauses between reads of the Lease double from 0.2 s up to `maxBackoff`.
const FIRST_PAUSE: Micros = 200 * MILLISECOND;
const LONGEST_PAUSE: Micros = 7 * SECOND;

/// Largest share by which a turn's interval is stretched (`wait.JitterUntil`).
const JITTER: f64 = 0.04;

/// Time-out of the heartbeat client: min(nodeStatusUpdateFrequency, lease duration).
const TIME_OUT: Micros = 10 * SECOND;

/// `nodeStatusUpdateFrequency`: how often it looks whether its status has to be reported, with [`STATUS_TRIES`] tries.
const STATUS_UPDATE_FREQUENCY: Micros = 10 * SECOND;
const STATUS_TRIES: usize = 5;

/// Between a failed request and the next in the same turn.
const AT_ONCE: Micros = MILLISECOND;

/// The clock of a node: off by the last of `steps` that is not later, microseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeClock {
    pub(crate) steps: Vec<(Micros, Micros)>,
}

impl NodeClock {
    pub(crate) fn at(&self, now: Micros) -> Micros {
        let set = self
            .steps
            .iter()
            .filter(|(from, _)| *from <= now)
            .max_by_key(|(from, _)| *from);
        now + set.map_or(0, |(_, skew)| *skew)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct KubeletModel {
    pub(crate) seed: u64,
    pub(crate) starts: Micros,
    pub(crate) stops: Micros,
    pub(crate) lease_duration: Micros,
    pub(crate) clock: NodeClock,
    /// Share of its abandoned requests that a frozen server still works on when it thaws: it may find the request
    /// before it finds that no client waits for the answer.
    pub(crate) late_writes: f64,
}

impl KubeletModel {
    /// A kubelet that is there from the start to the end.
    pub(crate) fn steady(seed: u64, starts: Micros) -> Self {
        Self {
            seed,
            starts,
            stops: FOREVER,
            lease_duration: 40 * SECOND,
            clock: NodeClock::default(),
            late_writes: 0.0,
        }
    }

    /// While its API server serves: an interval, and a quarter for its jitter and a request that is answered slowly.
    pub(crate) const fn renews_within(&self) -> Micros {
        self.lease_duration / 4 * 5 / 4
    }

    /// The history of the kubelet until `until`.
    pub(crate) fn run(&self, path: &NetworkPath<'_>, until: Micros) -> KubeletHistory {
        let until = until.min(self.stops);
        KubeletHistory {
            writes: LeaseLoop::new(self, path, until).run(),
            reports: self.reports(path, until),
        }
    }

    fn reports(&self, path: &NetworkPath<'_>, until: Micros) -> Vec<Micros> {
        let mut random = Random::stream(self.seed, 2);
        let mut client = HttpClient::new(TIME_OUT);
        let mut now = self.starts + random.between(0, STATUS_UPDATE_FREQUENCY);
        let mut reports = Vec::new();
        while now < until {
            for attempt in 0..STATUS_TRIES {
                let read = client.call(path, now, false);
                let done = match read.is_ok() {
                    true => client.call(path, read.at, true),
                    false => read,
                };
                now = done.at + AT_ONCE;
                if done.is_ok() {
                    reports.push(done.at);
                    break;
                }
                if attempt > 0 {
                    client.close_connections();
                }
            }
            now += jittered(STATUS_UPDATE_FREQUENCY, &mut random);
        }
        reports.retain(|at| *at < until);
        reports
    }
}

fn jittered(interval: Micros, random: &mut Random) -> Micros {
    interval + (interval as f64 * JITTER * random.unit()) as Micros
}

/// A write that the server makes although the kubelet no longer waits for it.
#[derive(Debug, Clone, Copy)]
struct LateWrite {
    write: LeaseWrite,
    based_on: u64,
}

struct LeaseLoop<'a> {
    kubelet: &'a KubeletModel,
    path: &'a NetworkPath<'a>,
    until: Micros,
    client: HttpClient,
    random: Random,
    writes: Vec<LeaseWrite>,
    late: Vec<LateWrite>,
    /// The version of the Lease that the kubelet knows; 0 for none.
    known: u64,
    /// The version on the server; 0 while there is none.
    version: u64,
}

impl<'a> LeaseLoop<'a> {
    fn new(kubelet: &'a KubeletModel, path: &'a NetworkPath<'a>, until: Micros) -> Self {
        Self {
            kubelet,
            path,
            until,
            client: HttpClient::new(TIME_OUT),
            random: Random::stream(kubelet.seed, 1),
            writes: Vec::new(),
            late: Vec::new(),
            known: 0,
            version: 0,
        }
    }

    fn run(mut self) -> Vec<LeaseWrite> {
        let interval = self.kubelet.lease_duration / 4;
        let mut now = self.kubelet.starts;
        while now < self.until {
            let turn_ended = self.turn(now);
            now = turn_ended + jittered(interval, &mut self.random);
        }
        self.work_on_late_writes(FOREVER);
        self.writes.retain(|write| write.at < self.until);
        self.writes
    }

    fn turn(&mut self, at: Micros) -> Micros {
        let mut now = at;
        if self.known != 0 {
            let (ended, renewed) = self.put_in_a_row(now);
            now = ended;
            if renewed {
                return now;
            }
        }
        let (ended, created) = self.ensure(now);
        if created {
            return ended;
        }
        self.put_in_a_row(ended).0
    }

    /// Up to five PUTs; whether one of them succeeded.
    fn put_in_a_row(&mut self, at: Micros) -> (Micros, bool) {
        let mut now = at;
        for attempt in 0..PUTS {
            if now >= self.until {
                break;
            }
            let response = self.put(now);
            now = response.at;
            match response.status {
                Some(200) => return (now, true),
                Some(409) => now = self.ensure(now).0,
                _ => {
                    if attempt > 0 {
                        self.client.close_connections();
                    }
                    now += AT_ONCE;
                }
            }
        }
        (now, false)
    }

    fn put(&mut self, at: Micros) -> Response {
        let write = |made| LeaseWrite {
            at: made,
            renew_time: self.kubelet.clock.at(at),
        };
        let mut response = self.client.call(self.path, at, true);
        let based_on = self.known;
        if let Some(processed) = response.processed {
            let write = write(processed);
            if processed > response.at {
                // It was given up before.
                if self.random.chance(self.kubelet.late_writes) {
                    self.late.push(LateWrite { write, based_on });
                }
            } else if !self.store(write, based_on) {
                response.status = response.status.map(|_| 409);
            } else if response.is_ok() {
                self.known = self.version;
            }
        }
        response
    }

    /// Returns true if the server accepts the write. A write based on another version is a conflict.
    fn store(&mut self, write: LeaseWrite, based_on: u64) -> bool {
        self.work_on_late_writes(write.at);
        self.store_now(write, based_on)
    }

    fn work_on_late_writes(&mut self, until: Micros) {
        let (mut due, late): (Vec<_>, _) = self.late.drain(..).partition(|late| late.write.at <= until);
        self.late = late;
        due.sort_by_key(|late| late.write.at);
        for LateWrite { write, based_on } in due {
            self.store_now(write, based_on);
        }
    }

    fn store_now(&mut self, write: LeaseWrite, based_on: u64) -> bool {
        let taken = based_on == self.version;
        if taken {
            self.version += 1;
            self.writes.push(write);
        }
        taken
    }

    /// Reads the Lease, or creates it, until that succeeds; whether it was created.
    fn ensure(&mut self, at: Micros) -> (Micros, bool) {
        let (mut now, mut pause) = (at, FIRST_PAUSE);
        while now < self.until {
            let read = self.client.call(self.path, now, false);
            now = read.at;
            if read.is_ok() {
                self.work_on_late_writes(read.processed.unwrap_or(now));
                if self.version > 0 {
                    self.known = self.version;
                    return (now, false);
                }
                let created = self.put(now);
                now = created.at;
                if created.is_ok() {
                    return (now, true);
                }
            }
            now += pause;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        (now, false)
    }
}

#[cfg(test)]
mod tests;
