//! Readiness as a set of named blockers: the service is ready when none is left. Beside them stands why the last try of
//! a loop failed, which by itself blocks nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::failure::{Failure, Reason};
use crate::label;
use crate::metrics::{Collector, Exposition, Gauge};

label!("reason": Reason);
label!(struct BlockerName: "blocker");
label!(struct LoopName: "loop");

const READY: Gauge = Gauge::new(
    "watchdog_ready",
    "1 while the service is ready, as /readyz reports.",
);

const BLOCKED: Gauge<BlockerName<'_>> = Gauge::new(
    "watchdog_readiness_blocked",
    "1 for everything that keeps the service from being ready, by blocker; /readyz says what to do about it.",
);

const RETRY_LOOP_FAILING: Gauge<(LoopName<'_>, Reason)> = Gauge::new(
    "watchdog_retry_loop_failing",
    "1 for every loop whose last try failed and that tries again, by loop (membership, leader-election, discovery, \
     lease-probe, events, permissions, machines, pods, the watches, and timer, file-descriptors and log, \
     where the process itself lacks something) and reason: not_found, forbidden, unauthorized, conflict, \
     throttled, server_error, rejected, certificate, server_name, connection_refused, timeout, connection, \
     local_limit, stalled or other; \
     /readyz has the error.",
);

/// A failure is shown for at most this long after the last try. Every loop tries again sooner, and a watch that works
/// again may have nothing to say.
const SHOWN_FOR: Duration = Duration::from_secs(180);

/// The name of a blocker or of a loop. Most stand in the source; those of configured resources do not.
pub type Name = Cow<'static, str>;

/// Why each blocker blocks, by its name and a number that grows with every blocker.
pub type Blockers = BTreeMap<(Name, u64), String>;

/// The last failures of loops that try again, each with the end of its show, by the name and the instance of the loop.
type Failures = BTreeMap<(Name, Arc<str>), (Instant, Failure)>;

/// The readiness of the process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    blockers: watch::Sender<Blockers>,
    failures: Arc<Mutex<Failures>>,
    instance: Arc<str>,
}

impl Readiness {
    /// Blocks until what it returns is dropped. Several blockers of one name each say why.
    #[must_use = "it blocks only while it is held"]
    pub fn block(&self, name: impl Into<Name>, why: impl Into<String>) -> Blocker {
        static BLOCKERS_MADE: AtomicU64 = AtomicU64::new(0);
        let blocker = Blocker {
            readiness: self.clone(),
            key: (name.into(), BLOCKERS_MADE.fetch_add(1, Ordering::Relaxed)),
        };
        blocker.because(why);
        blocker
    }

    /// The current blockers, by name, and why they block, in a sentence that says what to do. Where a process has
    /// several services, a name may stand for a part of each of them: then all their reasons are there, in the order of
    /// their making.
    #[must_use]
    pub fn blockers(&self) -> BTreeMap<Name, String> {
        let mut reasons: BTreeMap<Name, Vec<String>> = BTreeMap::new();
        for ((name, _), why) in self.blockers.borrow().iter() {
            let of_name = reasons.entry(name.clone()).or_default();
            if !of_name.contains(why) {
                of_name.push(why.clone());
            }
        }
        let joined = reasons
            .into_iter()
            .map(|(name, reasons)| (name, reasons.join("; ")));
        joined.collect()
    }

    /// For one of several loops of the same name: has blockers of its own, and shows its failures under `instance`.
    #[must_use]
    pub fn part(&self, instance: &str) -> Self {
        Self {
            failures: self.failures.clone(),
            instance: instance.into(),
            ..Self::default()
        }
    }

    /// For one of several loops of the same name: shares the blockers, and shows reasons and failures under `instance`.
    #[must_use]
    pub fn named(&self, instance: &str) -> Self {
        Self {
            instance: instance.into(),
            ..self.clone()
        }
    }

    /// The argument of [`Readiness::part`] or [`Readiness::named`]; empty for the whole.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The last try of a loop failed, and it tries again. True if that is news: the try before did not fail, or for
    /// another reason. One log line is enough then, however long it lasts.
    pub fn failing(&self, name: impl Into<Name>, failure: Failure) -> bool {
        self.show(name, failure, SHOWN_FOR)
    }

    /// Shows a failure for this time. True if none of that name with its reason was shown.
    pub(crate) fn show(&self, name: impl Into<Name>, failure: Failure, time: Duration) -> bool {
        let now = Instant::now();
        let reason = failure.reason;
        let mut failures = self.failures.lock();
        failures.retain(|_, (until, _)| now < *until);
        let key = (name.into(), self.instance.clone());
        let before = failures.insert(key, (now + time, failure));
        before.is_none_or(|(_, before)| before.reason != reason)
    }

    /// The last try of a loop succeeded, or the loop has ended. True if the try before failed.
    pub fn recovered(&self, name: impl Into<Name>) -> bool {
        let before = self.failures.lock().remove(&(name.into(), self.instance.clone()));
        before.is_some_and(|(until, _)| Instant::now() < until)
    }

    /// Loops whose last try failed, and why.
    #[must_use]
    pub fn failures(&self) -> Vec<(Name, Arc<str>, Failure)> {
        let now = Instant::now();
        let failures = self.failures.lock();
        let shown = failures.iter().filter(|(_, (until, _))| now < *until);
        shown
            .map(|((name, instance), (_, failure))| (name.clone(), instance.clone(), failure.clone()))
            .collect()
    }

    /// The lines of /readyz: the blockers, then the loops whose last try failed.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let blockers = self.blockers().into_iter();
        let blockers = blockers.map(|(name, why)| format!("{name}: {why}"));
        let failures = self
            .failures()
            .into_iter()
            .map(|(name, instance, failure)| match &*instance {
                "" => format!("{name}: the last try failed: {failure}"),
                instance => format!("{name}: the last try of {instance} failed: {failure}"),
            });
        blockers.chain(failures).collect()
    }

    /// True while nothing blocks.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.blockers.borrow().is_empty()
    }

    /// Follows whether the process is ready; other changes of what blocks are no news.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Blockers> {
        self.blockers.subscribe()
    }

    fn update(&self, change: impl FnOnce(&mut Blockers)) {
        self.blockers.send_if_modified(|blockers| {
            let was_ready = blockers.is_empty();
            change(blockers);
            blockers.is_empty() != was_ready
        });
    }
}

impl Collector for Readiness {
    fn collect(&self, out: &mut Exposition) {
        let blockers = self.blockers();
        out.family(&READY, [((), f64::from(u8::from(blockers.is_empty())))]);
        out.family(&BLOCKED, blockers.keys().map(|name| (BlockerName(name), 1.0)));
        let failures = self.failures();
        // Several replicas may fail for one reason.
        let failing: BTreeSet<_> = failures
            .iter()
            .map(|(name, _, failure)| (LoopName(name), failure.reason))
            .collect();
        out.family(
            &RETRY_LOOP_FAILING,
            failing.into_iter().map(|labels| (labels, 1.0)),
        );
    }
}

/// Keeps the service from being ready until it is dropped.
#[derive(Debug)]
pub struct Blocker {
    readiness: Readiness,
    key: (Name, u64),
}

impl Blocker {
    /// Says anew why it blocks.
    pub fn because(&self, why: impl Into<String>) {
        let why = match &*self.readiness.instance {
            "" => why.into(),
            instance => format!("{instance}: {}", why.into()),
        };
        self.readiness
            .update(|blockers| drop(blockers.insert(self.key.clone(), why)));
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        self.readiness.update(|blockers| drop(blockers.remove(&self.key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Reason;

    #[test]
    fn is_ready_when_the_last_blocker_is_dropped() {
        let readiness = Readiness::default();
        let clusters = readiness.block("clusters", "not listed yet");
        let unchecked = readiness.block("permissions", "not checked yet");
        let missing = readiness.block("permissions", "missing: list leases");
        assert!(!readiness.is_ready());
        let again = readiness.block("permissions", "not checked yet");
        assert_eq!(
            readiness.blockers()["permissions"],
            "not checked yet; missing: list leases"
        );
        drop((clusters, missing, again));
        assert_eq!(readiness.blockers()["permissions"], "not checked yet");
        assert!(!readiness.is_ready());
        drop(unchecked);
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_reason_names_the_loop_that_blocks() {
        let readiness = Readiness::default();
        let _apiserver = readiness
            .named("kube-apiserver")
            .block("endpoints", "not listed yet");
        let etcd = readiness.named("etcd").block("endpoints", "not listed yet");
        etcd.because("denied");
        assert_eq!(
            readiness.lines(),
            ["endpoints: kube-apiserver: not listed yet; etcd: denied"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_shown_until_the_loop_recovers_or_is_silent() {
        let readiness = Readiness::default();
        let peer = readiness.part("lease-probe-1");
        let blocker = readiness.block("clusters", "not listed yet");
        assert!(readiness.failing("clusters", Failure::new(Reason::Timeout, &"no answer")));
        let denied = || Failure::new(Reason::Forbidden, &"denied");
        assert!(readiness.failing("clusters", denied()), "for another reason");
        assert!(!readiness.failing("clusters", denied()));
        peer.failing("verdicts", Failure::new(Reason::Timeout, &"no answer within 5s"));
        let expected = [
            "clusters: not listed yet",
            "clusters: the last try failed: denied",
            "verdicts: the last try of lease-probe-1 failed: no answer within 5s",
        ];
        assert_eq!(readiness.lines(), expected);
        drop(blocker);
        assert!(readiness.is_ready(), "a failure by itself blocks nothing");
        assert!(readiness.recovered("clusters") && !readiness.recovered("clusters"));
        assert_eq!(readiness.lines(), expected[2..]);
        tokio::time::advance(SHOWN_FOR).await;
        assert_eq!(readiness.lines(), [""; 0]);
    }
}
