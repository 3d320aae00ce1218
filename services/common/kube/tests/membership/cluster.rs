//! Replicas of one service against the in-memory API server.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use watchdog_kube::membership::{
    Exclusive, Membership as _, MembershipConfig, MembershipTask, Share, Timing, lease,
};
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::ApiServer;
use watchdog_test_support::in_process::api_server;
use watchdog_test_support::sandboxed::client;
use watchdog_test_support::wait::BOUND;

pub const NAMESPACE: &str = "garden";

type Join = fn(MembershipConfig, CancellationToken) -> (Share, MembershipTask);

/// Replicas, and the API server that they share. The runtime of the tests has one thread, so while a test looks at all
/// of them none of them runs.
pub struct Cluster {
    pub api: ApiServer,
    service: &'static str,
    pub timing: Timing,
    pub replicas: Vec<MembershipReplica>,
    join: Join,
    keys: Vec<String>,
}

pub struct MembershipReplica {
    pub membership: Share,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Cluster {
    /// Of a service whose replicas may not overlap.
    pub async fn new() -> Self {
        let join = |config, stop| {
            let (membership, task) = Exclusive::join(config, stop);
            (Share::clone(&membership), task)
        };
        Self::of("scaling-coordinator", join).await
    }

    /// Of a service whose replicas may overlap for a moment.
    pub async fn overlapping(service: &'static str) -> Self {
        Self::of(service, Share::join).await
    }

    async fn of(service: &'static str, join: Join) -> Self {
        Self {
            api: api_server(&[NAMESPACE]).await.unwrap(),
            service,
            // Renewals every second, 2.7 s and 3.6 s for 13.5 s and 18 s.
            timing: Timing::PRODUCTION.faster(5),
            replicas: Vec::new(),
            join,
            keys: (0..60).map(|i| format!("shoot--project--{i}")).collect(),
        }
    }

    pub async fn client(&self, user: &str) -> Client {
        client(&self.api.kubeconfig(user)).await.unwrap()
    }

    pub async fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client("admin").await, NAMESPACE)
    }

    /// Starts a replica; the API server knows it by the same name.
    pub async fn start(&mut self, identity: &str) -> Share {
        let config = MembershipConfig {
            client: self.client(identity).await,
            namespace: NAMESPACE.to_owned(),
            service: self.service,
            identity: identity.to_owned(),
            address: format!("{identity}.test:9645"),
            readiness: Readiness::default(),
            timing: self.timing,
        };
        let stop = CancellationToken::new();
        let (membership, task) = (self.join)(config, stop.clone());
        self.replicas.push(MembershipReplica {
            membership: membership.clone(),
            stop,
            task: tokio::spawn(task.run()),
        });
        membership
    }

    /// Starts replicas and waits until they share all keys.
    pub async fn start_all(&mut self, identities: &[&str]) -> Vec<Share> {
        let mut all = Vec::new();
        for identity in identities {
            all.push(self.start(identity).await);
        }
        self.until("all share", |c| c.shared_by(identities)).await;
        all
    }

    fn at(&mut self, identity: &str) -> usize {
        let found = self
            .replicas
            .iter()
            .position(|r| &**r.membership.identity() == identity);
        found.unwrap()
    }

    /// The process drains.
    pub fn drain(&mut self, identity: &str) -> JoinHandle<()> {
        let at = self.at(identity);
        let replica = self.replicas.remove(at);
        replica.stop.cancel();
        replica.task
    }

    /// The process dies. Its handle is still looked at: it must stop to act by itself.
    pub fn kill(&mut self, identity: &str) {
        let at = self.at(identity);
        self.replicas[at].task.abort();
    }

    /// Forgets a process that was killed.
    pub fn forget(&mut self, identity: &str) {
        let at = self.at(identity);
        self.replicas.remove(at);
    }

    /// The replicas that may act on a key. More than one is a failure.
    fn actor(&self, key: &str) -> Option<String> {
        let acting = self.replicas.iter().filter(|r| r.membership.may_act(key));
        let actors: Vec<_> = acting.map(|r| r.membership.identity().to_string()).collect();
        assert!(actors.len() <= 1, "{actors:?} act on {key}");
        actors.into_iter().next()
    }

    /// True if every key has an actor, and these are the actors.
    pub fn shared_by(&self, identities: &[&str]) -> bool {
        let actors: Vec<_> = self.keys.iter().map(|key| self.actor(key)).collect();
        let names: BTreeSet<_> = actors.iter().flatten().map(String::as_str).collect();
        actors.iter().all(Option::is_some) && names == identities.iter().copied().collect()
    }

    /// True if every key has an owner, and these are the owners.
    pub fn owned_by(&self, identities: &[&str]) -> bool {
        let mut names = BTreeSet::new();
        for key in &self.keys {
            let owners = self.replicas.iter().filter(|r| r.membership.owns(key));
            let owners: Vec<_> = owners.map(|r| &**r.membership.identity()).collect();
            if owners.len() != 1 {
                return false;
            }
            names.extend(owners);
        }
        names == identities.iter().copied().collect()
    }

    /// A key that this replica may act on.
    pub fn key_of(&self, identity: &str) -> String {
        let found = self
            .keys
            .iter()
            .find(|key| self.actor(key).as_deref() == Some(identity));
        found.unwrap().clone()
    }

    /// The keys that this replica looks after.
    pub fn owned_keys(&self, membership: &Share) -> Vec<String> {
        self.keys
            .iter()
            .filter(|key| membership.owns(key))
            .cloned()
            .collect()
    }

    /// Waits until `condition` holds, and says how long that took. All the time, no two replicas may act on one key.
    pub async fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) -> Duration {
        let started = Instant::now();
        loop {
            for key in &self.keys {
                self.actor(key);
            }
            if condition(self) {
                return started.elapsed();
            }
            assert!(started.elapsed() < BOUND, "gave up waiting until {what}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks for this time that no two replicas act on one key.
    pub async fn watch_for(&self, span: Duration) {
        let started = Instant::now();
        self.until("time has passed", |_| started.elapsed() >= span).await;
    }

    pub fn lease_name(&self, identity: &str) -> String {
        lease::name(self.service, identity)
    }
}
