//! Leader election: one replica of a program acts, the others are warm.
//!
//! The rules are those of client-go (`election`), on one Lease. A replica acts while it [leads](Leadership::is_leader):
//! from the start of the renewal that won the Lease, by its own monotonic clock, for less time than anybody else waits
//! before taking the Lease. So no two act at one time, whichever of their requests are lost or late. The last look at
//! that clock is right before a write goes to the network ([`Permit::client`]). A clock that stops while the process
//! goes on is outside of this, and so is a write that had left and arrives late; the preconditions of every write
//! remain.
//!
//! Permissions, in the namespace of the Lease: `coordination.k8s.io` `leases`: get and update by name, create.

pub(crate) mod election;
pub mod forward;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::service_fn;
use watchdog_runtime::publish::publish_if_changed;

pub use self::election::{ElectionTiming, LeaseTimes};
pub use self::run::{ElectionConfig, LeaderElection};
use crate::Identity;
use crate::seed::SendWhile;

/// The replica that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its name.
    pub name: Identity,
    /// Where its gRPC API is reached, if others can reach it.
    pub address: Option<Arc<str>>,
}

/// The leadership of a program, as one of its replicas knows it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Leadership {
    state: Arc<LeadershipState>,
}

/// The source of a [`Leadership`]: the election, or a test.
#[derive(Debug)]
pub struct LeadershipSetter {
    /// This replica as the leader.
    me: Leader,
    state: Arc<LeadershipState>,
}

/// The right to act. The release of the Lease at a drain waits for it, so it is held while a write is on its way, and
/// no longer.
#[derive(Debug)]
#[must_use = "the action is only covered while the permit exists"]
pub struct Permit {
    since: Instant,
    until: Instant,
    state: Arc<LeadershipState>,
    _acting: TaskTrackerToken,
}

#[derive(Debug)]
struct LeadershipState {
    identity: Identity,
    act_until: Mutex<Option<Instant>>,
    holds_lease: AtomicBool,
    /// The longest action that has ended since [`LeadershipSetter::take_slowest`].
    slowest: Mutex<Duration>,
    /// Every permit has a token.
    acting: TaskTracker,
    leads: watch::Sender<bool>,
    leader: watch::Sender<Option<Leader>>,
}

// === impl Leadership ===

impl Leadership {
    /// The replica of this name, and what tells it who leads. Nobody leads at first.
    #[must_use]
    pub fn channel(name: impl Into<Identity>, address: Option<Arc<str>>) -> (LeadershipSetter, Self) {
        let (name, acting) = (name.into(), TaskTracker::new());
        acting.close();
        let state = Arc::new(LeadershipState {
            identity: Arc::clone(&name),
            act_until: Mutex::default(),
            holds_lease: AtomicBool::new(false),
            slowest: Mutex::default(),
            acting,
            leads: watch::Sender::new(false),
            leader: watch::Sender::new(None),
        });
        let setter = LeadershipSetter {
            me: Leader { name, address },
            state: Arc::clone(&state),
        };
        (setter, Self { state })
    }

    /// The name of this replica.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.state.identity
    }

    /// True if this replica may act now. For a write, which takes time, use [`Self::act`].
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.state.act_until().is_some()
    }

    /// The name of this replica if it may act now, and an empty one otherwise.
    #[must_use]
    pub fn name_if_leading(&self) -> &str {
        match self.is_leader() {
            true => &self.state.identity,
            false => "",
        }
    }

    /// True while this replica is the one that the Lease names, also while it may not act because the Lease was not
    /// renewed in time: nobody else leads.
    #[must_use]
    pub fn holds_lease(&self) -> bool {
        self.state.holds_lease.load(Ordering::Acquire)
    }

    /// The right to act, if this replica leads. The action (a request, with its answer) must end before
    /// [`Permit::until`]; give it that as its deadline if its own is later, and send it by [`Permit::client`].
    #[must_use]
    pub fn act(&self) -> Option<Permit> {
        // Who waits for the permits has ended the leadership before: it sees this one, or this one sees the end.
        let acting = self.state.acting.token();
        Some(Permit {
            since: Instant::now(),
            until: self.state.act_until()?,
            state: Arc::clone(&self.state),
            _acting: acting,
        })
    }

    /// Changes when this replica begins or ceases to lead, also by the passing of time, and when a renewal came so late
    /// that it could not lead for a moment.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.state.leads.subscribe()
    }

    /// The leader, this replica included; none while nobody leads or it is not known yet.
    #[must_use]
    pub fn leader(&self) -> watch::Receiver<Option<Leader>> {
        self.state.leader.subscribe()
    }
}

// === impl LeadershipSetter ===

impl LeadershipSetter {
    /// This replica holds the Lease, and may act until then, if it may.
    pub fn lead(&self, act_until: Option<Instant>) {
        self.set(act_until, true, Some(self.me.clone()));
    }

    /// This replica does not lead: this one does, or nobody.
    pub fn follow(&self, leader: Option<Leader>) {
        self.set(None, false, leader);
    }

    /// In this order: a reader of "this replica leads" may act.
    fn set(&self, act_until: Option<Instant>, holds_lease: bool, leader: Option<Leader>) {
        let before = std::mem::replace(&mut *self.state.act_until.lock(), act_until);
        // Who has looked since saw that this replica must not act.
        let has_lapsed = before.is_some_and(|until| until <= Instant::now());
        self.state.holds_lease.store(holds_lease, Ordering::Release);
        publish_if_changed(&self.state.leader, &leader);
        let leads = self.state.act_until().is_some();
        self.state.leads.send_if_modified(|shown| {
            let before = std::mem::replace(shown, leads);
            before != leads || has_lapsed
        });
    }

    /// The longest action that has ended since this was called last.
    fn take_slowest(&self) -> Duration {
        std::mem::take(&mut self.state.slowest.lock())
    }

    /// Waits until no permit is left. To be called once this replica does not lead.
    async fn idle(&self, deadline: Duration) -> bool {
        timeout(deadline, self.state.acting.wait()).await.is_ok()
    }
}

// === impl LeadershipState ===

impl LeadershipState {
    fn act_until(&self) -> Option<Instant> {
        self.act_until.lock().filter(|until| Instant::now() < *until)
    }
}

// === impl Permit ===

impl Permit {
    /// When the action must have ended: from then on somebody else may act.
    #[must_use]
    pub const fn until(&self) -> Instant {
        self.until
    }

    /// The client for the action. What it has not sent when the permit or the leadership ends, it never sends, even if
    /// the process was frozen in the middle of it. The leadership may end before, because the Lease is shorter since or
    /// was lost. A request must have a body.
    #[must_use]
    pub fn client(&self, client: &kube::Client) -> kube::Client {
        let (until, state, of_seed) = (self.until, Arc::clone(&self.state), client.clone());
        let may_send = move || Instant::now() < until && state.act_until().is_some();
        let may_send = SendWhile(Arc::new(may_send));
        let send = service_fn(move |mut request: Request<Body>| {
            request.extensions_mut().insert(may_send.clone());
            let of_seed = of_seed.clone();
            async move { of_seed.send(request).await }
        });
        kube::Client::new(send, client.default_namespace())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut slowest = self.state.slowest.lock();
        *slowest = self.since.elapsed().max(*slowest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn other() -> Leader {
        Leader {
            name: "b".into(),
            address: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leading_ends_by_time_and_a_renewal_is_no_change() {
        let (setter, leadership) = Leadership::channel("a", None);
        assert!(
            !leadership.is_leader() && leadership.act().is_none() && leadership.leader().borrow().is_none()
        );
        let mut leads = leadership.subscribe();
        let until = Instant::now() + Duration::from_secs(1);
        setter.lead(Some(until));
        assert!(leads.has_changed().unwrap() && *leads.borrow_and_update());
        assert_eq!(leadership.name_if_leading(), "a");
        setter.lead(Some(until + Duration::from_millis(1)));
        assert!(!leads.has_changed().unwrap());
        assert_eq!(
            leadership.act().unwrap().until(),
            until + Duration::from_millis(1)
        );
        tokio::time::advance(Duration::from_millis(1002)).await;
        assert!(
            !leadership.is_leader() && leadership.act().is_none(),
            "time alone ends it"
        );
        assert_eq!(leadership.name_if_leading(), "");
        assert!(leadership.holds_lease(), "nobody else leads");
        // The election was frozen, too: the end of its time was not reported.
        setter.lead(Some(Instant::now() + HOUR));
        assert!(leads.has_changed().unwrap() && *leads.borrow_and_update());
        setter.follow(Some(other()));
        assert!(!leadership.holds_lease() && !*leads.borrow());
        assert_eq!(leadership.leader().borrow().as_ref(), Some(&other()));
    }

    /// The leader has sent a shorter Lease, or has lost it.
    #[tokio::test(start_paused = true)]
    async fn a_permit_sends_nothing_after_a_leadership_that_became_shorter() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sent);
        let seed = service_fn(move |request: Request<Body>| {
            seen.lock()
                .extend(request.extensions().get::<SendWhile>().cloned());
            std::future::ready(Ok::<_, kube::Error>(http::Response::new(Body::empty())))
        });
        let seed = kube::Client::new(seed, "garden");
        let (setter, leadership) = Leadership::channel("a", None);
        let may_send = || sent.lock().iter().all(|SendWhile(may_send)| may_send());
        let second = Duration::from_secs(1);
        setter.lead(Some(Instant::now() + 10 * second));
        let permit = leadership.act().unwrap();
        permit
            .client(&seed)
            .send(Request::new(Body::empty()))
            .await
            .unwrap();
        assert!(sent.lock().len() == 1 && may_send());
        setter.lead(Some(Instant::now() + 3 * second));
        tokio::time::advance(2 * second).await;
        assert!(may_send());
        tokio::time::advance(second).await;
        assert!(!may_send());
        setter.lead(Some(Instant::now() + HOUR));
        assert!(may_send(), "nobody led since");
        setter.follow(None);
        assert!(!may_send());
        setter.lead(Some(Instant::now() + HOUR));
        tokio::time::advance(7 * second).await;
        assert!(!may_send(), "a permit of an earlier leadership");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_the_permits_waits_for_all_of_them() {
        let (setter, leadership) = Leadership::channel("a", None);
        setter.lead(Some(Instant::now() + HOUR));
        let permits = [leadership.act().unwrap(), leadership.act().unwrap()];
        setter.follow(None);
        assert!(leadership.act().is_none());
        assert!(!setter.idle(Duration::from_secs(2)).await);
        drop(permits);
        assert!(setter.idle(Duration::from_secs(2)).await);
        setter.follow(None);
        assert!(leadership.act().is_none());
        setter.lead(Some(Instant::now() + HOUR));
        assert!(leadership.act().is_some());
    }
}
