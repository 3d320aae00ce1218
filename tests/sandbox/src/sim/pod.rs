//! One pod with one container, as its kubelet would run it.

use std::time::Duration;

use tokio::time::Instant;

use super::timing::SimTiming;

/// The state of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodPhase {
    /// Running, not ready yet.
    Starting { until: Instant },
    /// Running and ready.
    Ready { since: Instant },
    /// Running, not ready: an outage on command.
    Out,
    /// Running, but what it needs is missing: it will exit.
    Failing { until: Instant },
    /// Waiting in CrashLoopBackOff.
    BackOff { until: Instant },
}

/// The inputs that decide a pod's state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodInputs {
    /// Every service that it needs is ready.
    pub(crate) needs_met: bool,
    /// A test made it unready.
    pub(crate) out: bool,
}

/// The state of a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodState {
    pub(crate) phase: PodPhase,
    /// `restartCount`.
    pub(crate) restarts: u32,
    /// When the container was last started.
    pub(crate) started: Instant,
    /// When it last exited.
    pub(crate) exited: Option<Instant>,
    /// Crashes since the back-off was last reset.
    crashes: u32,
}

impl PodState {
    /// A pod that was just created.
    pub(crate) fn new(now: Instant, timing: &SimTiming) -> Self {
        Self::in_phase(
            now,
            PodPhase::Starting {
                until: now + timing.ready_delay,
            },
        )
    }

    /// A pod that has been ready for a while.
    pub(crate) fn settled(now: Instant) -> Self {
        Self::in_phase(now, PodPhase::Ready { since: now })
    }

    fn in_phase(now: Instant, phase: PodPhase) -> Self {
        Self {
            phase,
            restarts: 0,
            started: now,
            exited: None,
            crashes: 0,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, PodPhase::Ready { .. })
    }

    /// Moves on; returns when it must be looked at again if nothing else changes.
    pub(crate) fn step(&mut self, now: Instant, around: PodInputs, timing: &SimTiming) -> Option<Instant> {
        match self.phase {
            PodPhase::Starting { until } if now < until => return Some(until),
            PodPhase::Starting { .. } if !around.needs_met => self.crash(now, timing),
            PodPhase::Starting { .. } if around.out => self.phase = PodPhase::Out,
            PodPhase::Starting { .. } => self.phase = PodPhase::Ready { since: now },

            PodPhase::Ready { .. } if around.out => self.phase = PodPhase::Out,
            PodPhase::Ready { since } if !around.needs_met => {
                // The kubelet forgives after twice the longest back-off.
                if now.duration_since(since) > timing.crash_backoff_max * 2 {
                    self.crashes = 0;
                }
                self.phase = PodPhase::Failing {
                    until: now + timing.crash_after,
                };
            }
            PodPhase::Ready { .. } => {}

            PodPhase::Out if !around.out => {
                self.phase = PodPhase::Starting {
                    until: now + timing.ready_delay,
                };
            }
            PodPhase::Out => {}

            PodPhase::Failing { .. } if around.needs_met => {
                self.phase = PodPhase::Starting {
                    until: now + timing.ready_delay,
                };
            }
            PodPhase::Failing { until } if now < until => return Some(until),
            PodPhase::Failing { .. } => self.crash(now, timing),

            PodPhase::BackOff { until } if now < until => return Some(until),
            // Back-off takes no notice of the service: that is what the weeder is for.
            PodPhase::BackOff { .. } => {
                self.restart(now);
                self.phase = if around.needs_met {
                    PodPhase::Starting {
                        until: now + timing.ready_delay,
                    }
                } else {
                    PodPhase::Failing {
                        until: now + timing.crash_after,
                    }
                };
            }
        }
        self.wake()
    }

    fn wake(&self) -> Option<Instant> {
        match self.phase {
            PodPhase::Starting { until } | PodPhase::Failing { until } | PodPhase::BackOff { until } => {
                Some(until)
            }
            PodPhase::Ready { .. } | PodPhase::Out => None,
        }
    }

    fn restart(&mut self, now: Instant) {
        self.restarts += 1;
        self.started = now;
    }

    /// The container exits: the first time it is restarted at once, then ever later.
    fn crash(&mut self, now: Instant, timing: &SimTiming) {
        self.crashes += 1;
        self.exited = Some(now);
        if self.crashes == 1 {
            self.restart(now);
            self.phase = PodPhase::Failing {
                until: now + timing.crash_after,
            };
        } else {
            self.phase = PodPhase::BackOff {
                until: now + backoff(self.crashes - 2, timing),
            };
        }
    }
}

/// The first back-off, doubled `doublings` times, at most the longest.
fn backoff(doublings: u32, timing: &SimTiming) -> Duration {
    let factor = 2_u32.saturating_pow(doublings);
    timing
        .crash_backoff
        .saturating_mul(factor)
        .min(timing.crash_backoff_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: PodInputs = PodInputs {
        needs_met: true,
        out: false,
    };
    const MISSING: PodInputs = PodInputs {
        needs_met: false,
        out: false,
    };

    /// Follows the pod from one wake-up to the next until `end`; returns the lengths of its back-offs.
    fn live(pod: &mut PodState, start: Instant, end: Duration, around: PodInputs) -> Vec<u64> {
        let timing = SimTiming::default();
        let mut now = start;
        let mut backoffs = Vec::new();
        while now < start + end {
            let before = pod.phase;
            let wake = pod.step(now, around, &timing);
            if let (PodPhase::BackOff { until }, true) = (pod.phase, before != pod.phase) {
                backoffs.push((until - now).as_secs());
            }
            match wake {
                Some(wake) => now = wake,
                None => break,
            }
        }
        backoffs
    }

    #[test]
    fn backoff_doubles_to_five_minutes() {
        let now = Instant::now();
        let mut pod = PodState::settled(now);
        let backoffs = live(&mut pod, now, Duration::from_secs(1500), MISSING);
        assert_eq!(backoffs, [10, 20, 40, 80, 160, 300, 300, 300, 300]);
    }

    #[test]
    fn a_pod_in_backoff_waits_it_out_although_the_service_is_back() {
        let now = Instant::now();
        let timing = SimTiming::default();
        let mut pod = PodState::settled(now);
        live(&mut pod, now, Duration::from_secs(30), MISSING);
        let PodPhase::BackOff { until } = pod.phase else {
            panic!("{:?}", pod.phase)
        };
        assert_eq!(
            pod.step(until - Duration::from_secs(1), FINE, &timing),
            Some(until)
        );
        assert!(matches!(pod.phase, PodPhase::BackOff { .. }));
        live(&mut pod, until, Duration::from_secs(60), FINE);
        assert!(pod.is_ready());
        assert!(pod.restarts > 1);
    }

    #[test]
    fn a_new_pod_starts_with_fresh_backoff() {
        let now = Instant::now();
        let mut pod = PodState::new(now, &SimTiming::default());
        live(&mut pod, now, Duration::from_secs(60), FINE);
        assert!(pod.is_ready() && pod.restarts == 0);
    }

    #[test]
    fn an_outage_is_no_crash() {
        let now = Instant::now();
        let timing = SimTiming::default();
        let mut pod = PodState::settled(now);
        assert_eq!(
            pod.step(
                now,
                PodInputs {
                    needs_met: true,
                    out: true
                },
                &timing
            ),
            None
        );
        assert!(!pod.is_ready());
        live(&mut pod, now, Duration::from_secs(60), FINE);
        assert!(pod.is_ready() && pod.restarts == 0);
    }
}
