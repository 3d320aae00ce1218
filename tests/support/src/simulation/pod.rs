//! One pod with one container, as its kubelet would run it.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::timing::SimTiming;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodPhase {
    /// Running, not ready yet.
    Starting,
    /// Running and ready.
    Ready,
    /// Running, not ready: an outage on command.
    Out,
    /// Running, but what it needs is missing: it will exit.
    Failing,
    /// Waiting in CrashLoopBackOff.
    BackOff,
}

/// The inputs that decide a pod's state.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodInputs {
    /// The service that it needs is ready.
    pub(super) needs_met: bool,
    /// A test made it unready.
    pub(super) out: bool,
}

#[derive(Debug, Clone)]
pub(super) struct PodState {
    pub(super) phase: PodPhase,
    /// When the phase ends by itself.
    pub(super) until: Option<Instant>,
    /// `restartCount`.
    pub(super) restarts: u32,
    /// When the container was last started.
    pub(super) started: Timestamp,
    /// When it last exited.
    pub(super) exited: Option<Timestamp>,
    /// When it last became ready, or lost that.
    pub(super) turned: Timestamp,
    crashes: u32,
}

// === impl PodState ===

impl PodState {
    /// A pod that was just created.
    pub(super) fn new(now: Instant, timing: &SimTiming) -> Self {
        let mut pod = Self::settled();
        pod.enter(PodPhase::Starting, now, timing.ready_delay);
        pod
    }

    /// A pod that has been ready for a while.
    pub(super) fn settled() -> Self {
        let now = Timestamp::now();
        Self {
            phase: PodPhase::Ready,
            until: None,
            restarts: 0,
            started: now,
            exited: None,
            turned: now,
            crashes: 0,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.phase == PodPhase::Ready
    }

    /// Moves on.
    pub(super) fn step(&mut self, now: Instant, around: PodInputs, timing: &SimTiming) {
        let is_over = self.until.is_some_and(|until| until <= now);
        match self.phase {
            PodPhase::Starting | PodPhase::Ready if around.out => self.rest(PodPhase::Out),
            PodPhase::Out if around.out => {}
            PodPhase::Out => self.enter(PodPhase::Starting, now, timing.ready_delay),
            PodPhase::Ready if !around.needs_met => self.enter(PodPhase::Failing, now, timing.crash_after),
            PodPhase::Failing if around.needs_met => self.enter(PodPhase::Starting, now, timing.ready_delay),
            PodPhase::Starting if is_over && around.needs_met => self.rest(PodPhase::Ready),
            PodPhase::Starting | PodPhase::Failing if is_over => self.crash(now, timing),
            // Back-off takes no notice of the service: that is what the weeder is for.
            PodPhase::BackOff if is_over => self.restart(now, around.needs_met, timing),
            _ => {}
        }
    }

    fn enter(&mut self, phase: PodPhase, now: Instant, length: Duration) {
        self.rest(phase);
        self.until = Some(now + length);
    }

    fn rest(&mut self, phase: PodPhase) {
        if self.is_ready() != (phase == PodPhase::Ready) {
            self.turned = Timestamp::now();
        }
        self.phase = phase;
        self.until = None;
    }

    /// The container exits: the first time it is restarted at once, then ever later.
    fn crash(&mut self, now: Instant, timing: &SimTiming) {
        self.crashes += 1;
        self.exited = Some(Timestamp::now());
        match self.crashes.checked_sub(2) {
            None => self.restart(now, false, timing),
            Some(doublings) => {
                let longer = timing
                    .crash_backoff
                    .saturating_mul(2_u32.saturating_pow(doublings));
                self.enter(PodPhase::BackOff, now, longer.min(timing.crash_backoff_max));
            }
        }
    }

    fn restart(&mut self, now: Instant, needs_met: bool, timing: &SimTiming) {
        self.restarts += 1;
        self.started = Timestamp::now();
        match needs_met {
            true => self.enter(PodPhase::Starting, now, timing.ready_delay),
            false => self.enter(PodPhase::Failing, now, timing.crash_after),
        }
    }
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

    /// Follows the pod from one turn to the next for this long; returns the lengths of its back-offs.
    fn live(pod: &mut PodState, start: Instant, length: Duration, around: PodInputs) -> Vec<u64> {
        let timing = SimTiming::default();
        let mut now = start;
        let mut backoffs = Vec::new();
        while now < start + length {
            let before = pod.phase;
            pod.step(now, around, &timing);
            let Some(until) = pod.until else { break };
            if pod.phase == PodPhase::BackOff && before != pod.phase {
                backoffs.push((until - now).as_secs());
            }
            now = until;
        }
        backoffs
    }

    #[test]
    fn backoff_doubles_to_five_minutes() {
        let mut pod = PodState::settled();
        let backoffs = live(&mut pod, Instant::now(), Duration::from_secs(1500), MISSING);
        assert_eq!(backoffs, [10, 20, 40, 80, 160, 300, 300, 300, 300]);
    }

    #[test]
    fn a_pod_in_backoff_waits_it_out_although_the_service_is_back() {
        let now = Instant::now();
        let timing = SimTiming::default();
        let mut pod = PodState::settled();
        live(&mut pod, now, Duration::from_secs(30), MISSING);
        let until = pod.until.unwrap();
        pod.step(until - Duration::from_secs(1), FINE, &timing);
        assert_eq!((pod.phase, pod.until), (PodPhase::BackOff, Some(until)));
        live(&mut pod, until, Duration::from_secs(60), FINE);
        assert!(pod.is_ready());
        assert!(pod.restarts > 1);
        let mut successor = PodState::new(now, &timing);
        live(&mut successor, now, Duration::from_secs(60), FINE);
        assert!(successor.is_ready() && successor.restarts == 0);
    }

    #[test]
    fn an_outage_is_no_crash() {
        let now = Instant::now();
        let mut pod = PodState::settled();
        let out = PodInputs { out: true, ..FINE };
        pod.step(now, out, &SimTiming::default());
        assert_eq!((pod.phase, pod.until), (PodPhase::Out, None));
        live(&mut pod, now, Duration::from_secs(60), FINE);
        assert!(pod.is_ready() && pod.restarts == 0);
    }
}
