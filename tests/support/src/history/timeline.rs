//! The record of each shoot, in order: what a watch of the seed saw, what the verdicts were, and what the test itself
//! did. [`super::invariants`] judges it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::transport::Channel;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::watch_verdicts_response::Event;
use watchdog_proto::probe::v1::{Outcome, WatchVerdictsRequest};

use crate::fixtures::{CA, KCM, MCM};
use crate::real::cluster_resource;
use crate::wait::BOUND;

/// Facts about one shoot that are kept, those of some hundred incidents. Beyond that the older half is forgotten, so
/// that a test of any length needs a bounded amount of memory; the checker judges the rest.
const MAX_ENTRIES: usize = 5_000;

/// After a broken stream of verdicts.
const RETRY: Duration = Duration::from_millis(100);

const PREFIX: &str = "dependency-watchdog.gardener.cloud/";

/// Something that happened.
#[derive(Clone, Debug)]
pub struct TimelineEntry {
    /// When it was seen or done, by the test's clock.
    pub at: Timestamp,
    /// The event.
    pub fact: Fact,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A dependant has changed.
    Dependant(Dependant),
    /// The Cluster has changed. Versions order it against the dependants.
    Cluster {
        /// `resourceVersion`, which one counter gives to all objects of an API server.
        version: u64,
        /// Why the shoot must not be written to from now on; none when it may.
        forbids: Option<&'static str>,
    },
    /// lease-probe reported this about the shoot.
    Verdict(Outcome),
    /// A write by the test, in the part of an operator or of Gardener; it made this version.
    Operator(u64),
    /// From now on some nodes of a shoot are cut off.
    Cut {
        /// Nodes that are cut off.
        cut: usize,
        /// All nodes.
        of: usize,
    },
    /// A request to change a dependant came in at the API server; its effect may show later.
    Arrival {
        /// Name of the dependant.
        name: String,
        /// The `resourceVersion` that it replaces.
        against: u64,
    },
}

/// A Deployment as it was at a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependant {
    /// `resourceVersion`.
    pub version: u64,
    pub name: String,
    /// Replicas wanted.
    pub wanted: i32,
    /// Replicas ready.
    pub ready: i32,
    /// The annotation with the recorded count, as it stands there.
    pub recorded: Option<String>,
    /// True if it is marked as held down.
    pub held: bool,
    /// True if it should be left alone.
    pub ignored: bool,
}

/// The records of all shoots of a seed.
#[derive(Debug, Default)]
pub struct Timeline {
    entries: Mutex<BTreeMap<String, Vec<TimelineEntry>>>,
    /// Tells that something was added.
    changed: watch::Sender<()>,
}

/// Keeps a timeline written while it lives.
#[derive(Debug)]
pub struct Recorder {
    _tasks: [AbortOnDropHandle<()>; 2],
}

// === impl Timeline ===

impl Timeline {
    /// Watches the Deployments and Clusters of a seed; when this returns, all that there are have been seen.
    pub async fn start(seed: &Client) -> anyhow::Result<(Arc<Self>, Recorder)> {
        let timeline = Arc::new(Self::default());
        let (started, mut both) = watch::channel(0_u8);
        let deployments = Api::<Deployment>::all(seed.clone());
        let clusters = Api::<DynamicObject>::all_with(seed.clone(), &cluster_resource());
        let (one, two) = (timeline.clone(), timeline.clone());
        let tasks = [
            tokio::spawn(follow(deployments, started.clone(), move |object, _| {
                let namespace = object.namespace().unwrap_or_default();
                one.add(&namespace, Fact::Dependant(dependant(object)));
            })),
            tokio::spawn(follow(clusters, started, move |object, deleted| {
                let forbids = if deleted { Some("gone") } else { forbids(object) };
                let version = version(object);
                two.add(&object.name_any(), Fact::Cluster { version, forbids });
            })),
        ];
        let recorder = Recorder {
            _tasks: tasks.map(AbortOnDropHandle::new),
        };
        match timeout(BOUND, both.wait_for(|count| *count == 2)).await {
            Ok(Ok(_)) => Ok((timeline, recorder)),
            _ => bail!("the seed could not be listed within {BOUND:?}"),
        }
    }

    /// Adds a fact about a shoot, by its namespace.
    pub fn add(&self, shoot: &str, fact: Fact) {
        let entry = TimelineEntry {
            at: Timestamp::now(),
            fact,
        };
        let mut all = self.entries.lock();
        let entries = all.entry(shoot.to_owned()).or_default();
        if entries.len() == MAX_ENTRIES {
            *entries = newer_half(std::mem::take(entries));
        }
        entries.push(entry);
        drop(all);
        self.changed.send_replace(());
    }

    /// Adds every verdict of a lease-probe while the handle lives, from the first snapshot on, which is there when this
    /// returns.
    pub async fn record_verdicts(
        self: &Arc<Self>,
        lease_probe: Channel,
    ) -> anyhow::Result<AbortOnDropHandle<()>> {
        let (timeline, started) = (self.clone(), Arc::new(Notify::new()));
        let first = started.clone();
        let record = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                // Opened again; what was missed is in the snapshot.
                let end = timeline.add_verdicts(lease_probe.clone(), &started).await;
                eprintln!(
                    "{}: the stream of verdicts to record ended: {end:?}",
                    Timestamp::now()
                );
                sleep(RETRY).await;
            }
        }));
        let waited = timeout(BOUND, first.notified()).await;
        waited.with_context(|| format!("no snapshot of the verdicts within {BOUND:?}"))?;
        Ok(record)
    }

    async fn add_verdicts(&self, lease_probe: Channel, started: &Notify) -> Result<(), Status> {
        let mut client = LeaseProbeServiceClient::new(lease_probe);
        let request = WatchVerdictsRequest::default();
        let mut stream = client.watch_verdicts(request).await?.into_inner();
        while let Some(message) = stream.message().await? {
            match message.event {
                Some(Event::Upsert(verdict)) => self.add(&verdict.shoot, Fact::Verdict(verdict.outcome())),
                Some(Event::SnapshotComplete(_)) => started.notify_one(),
                _ => {}
            }
        }
        Ok(())
    }

    /// All that is known of a shoot.
    pub fn of(&self, shoot: &str) -> Vec<TimelineEntry> {
        self.entries.lock().get(shoot).cloned().unwrap_or_default()
    }

    /// A dependant as it was last seen.
    pub fn dependant(&self, shoot: &str, name: &str) -> Option<Dependant> {
        let entries = self.entries.lock();
        let found = entries
            .get(shoot)?
            .iter()
            .rev()
            .find_map(|entry| match &entry.fact {
                Fact::Dependant(dependant) if dependant.name == name => Some(dependant),
                _ => None,
            });
        found.cloned()
    }

    /// Waits until `condition` holds, looking whenever something was added.
    pub async fn until(
        &self,
        what: &str,
        bound: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let mut changed = self.changed.subscribe();
        match timeout(bound, changed.wait_for(|()| condition(self))).await {
            Ok(Ok(_)) => Ok(()),
            _ => bail!("waited {bound:?} in vain: {what}"),
        }
    }

    /// Waits until everything that the seed has now is in the timeline, so that the next wait does not end with the
    /// past.
    pub async fn catch_up(&self, seed: &Client) -> anyhow::Result<()> {
        let all = Api::<Deployment>::all(seed.clone());
        let all = all.list(&ListParams::default()).await?;
        let is_seen = |listed: &Deployment| {
            let seen = self.dependant(&listed.namespace().unwrap_or_default(), &listed.name_any());
            seen.is_some_and(|seen| seen.version >= version(listed))
        };
        self.until("the timeline has caught up", BOUND, |_| all.iter().all(is_seen))
            .await
    }

    /// Waits until something holds of each of Gardener's three dependants of some shoots, of all at once.
    pub async fn until_dependants<S: AsRef<str>>(
        &self,
        what: &str,
        shoots: &[S],
        bound: Duration,
        good: impl Fn(&Dependant) -> bool,
    ) -> anyhow::Result<()> {
        let wrong = || {
            shoots.iter().find_map(|shoot| {
                let all = [KCM, MCM, CA].map(|name| self.dependant(shoot.as_ref(), name));
                let is_good = all.iter().all(|found| found.as_ref().is_some_and(&good));
                (!is_good).then(|| format!("{}: {all:?}", shoot.as_ref()))
            })
        };
        let waited = self.until(what, bound, |_| wrong().is_none()).await;
        waited.with_context(|| wrong().unwrap_or_default())
    }

    /// Waits until the dependants of some shoots want and have these counts, and none is held down, of all at once.
    pub async fn until_restored<S: AsRef<str>>(
        &self,
        shoots: &[S],
        counts: &[(&str, i32)],
        bound: Duration,
    ) -> anyhow::Result<()> {
        let restored = |dependant: &Dependant| dependant.is_restored(counts);
        self.until_dependants("all dependants are restored", shoots, bound, restored)
            .await
    }

    /// The last change of a dependant of any shoot.
    pub fn last_change(&self) -> Option<Timestamp> {
        let entries = self.entries.lock();
        let all = entries.values().flatten();
        let changes = all.filter(|entry| matches!(entry.fact, Fact::Dependant(_)));
        changes.map(|entry| entry.at).max()
    }
}

// === impl Dependant ===

impl Dependant {
    /// True if it wants and has one of these counts by its name, and is not held down.
    pub fn is_restored(&self, counts: &[(&str, i32)]) -> bool {
        let is_at =
            |(name, count): &(&str, i32)| *name == self.name && (self.wanted, self.ready) == (*count, *count);
        counts.iter().any(is_at) && !self.held
    }
}

/// Forgets the older of too many facts: those before the last beginning of a loss in the older half, except for how
/// everything was then. So each loss is judged with its beginning.
fn newer_half(mut entries: Vec<TimelineEntry>) -> Vec<TimelineEntry> {
    let older = entries.iter().take(entries.len() / 2);
    let is_loss = |entry: &TimelineEntry| matches!(entry.fact, Fact::Cut { cut: 1.., .. });
    let begin = older.clone().rposition(is_loss).unwrap_or(older.len());
    let newer = entries.split_off(begin);
    let mut state = BTreeMap::new();
    for entry in entries {
        let about = match &entry.fact {
            Fact::Dependant(dependant) => dependant.name.clone(),
            Fact::Cluster { .. } => "the Cluster".to_owned(),
            Fact::Verdict(_) => "the verdict".to_owned(),
            Fact::Operator(_) | Fact::Cut { .. } | Fact::Arrival { .. } => continue,
        };
        state.insert(about, entry);
    }
    state.into_values().chain(newer).collect()
}

/// Reports every object that a watch brings, and whether it is gone. What is listed again after a break comes as it is
/// then. Counts the end of the first list in `started`.
pub(crate) async fn follow<K>(api: Api<K>, started: watch::Sender<u8>, mut tell: impl FnMut(&K, bool))
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut first = Some(started);
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => tell(&object, false),
            Ok(watcher::Event::Delete(object)) => tell(&object, true),
            Ok(watcher::Event::InitDone) => {
                if let Some(started) = first.take() {
                    started.send_modify(|count| *count += 1);
                }
            }
            // The watcher lists again by itself.
            Ok(watcher::Event::Init) | Err(_) => {}
        }
    }
}

fn version(object: &impl Resource) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

fn dependant(object: &Deployment) -> Dependant {
    let annotation = |name: &str| object.annotations().get(&format!("{PREFIX}{name}"));
    let status = object.status.as_ref();
    Dependant {
        version: version(object),
        name: object.name_any(),
        wanted: object
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or_default(),
        ready: status
            .and_then(|status| status.ready_replicas)
            .unwrap_or_default(),
        recorded: annotation("replicas").cloned(),
        held: annotation("meltdown-protection-active").is_some(),
        ignored: annotation("ignore-scaling")
            .is_some_and(|value| ["1", "t", "T", "TRUE", "true", "True"].contains(&value.as_str())),
    }
}

/// Why a shoot in this state is never written to (rule S4).
fn forbids(cluster: &DynamicObject) -> Option<&'static str> {
    let shoot = cluster.data.pointer("/spec/shoot")?;
    let at = |pointer: &str| shoot.pointer(pointer);
    if cluster.metadata.deletion_timestamp.is_some() || at("/metadata/deletionTimestamp").is_some() {
        Some("being deleted")
    } else if at("/spec/hibernation/enabled") == Some(&Value::Bool(true)) {
        Some("hibernating")
    } else if at("/status/lastOperation/type").and_then(Value::as_str) == Some("Migrate") {
        Some("migrating")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_facts_the_newer_losses_are_kept_whole() {
        let timeline = Timeline::default();
        let dependant = |version: u64| {
            Fact::Dependant(Dependant {
                version,
                name: KCM.to_owned(),
                ..Dependant::default()
            })
        };
        timeline.add("a", dependant(0));
        for version in 1..100_000 {
            let cut = if version % 2 == 0 { 0 } else { 5 };
            timeline.add("a", Fact::Cut { cut, of: 5 });
            timeline.add("a", Fact::Verdict(Outcome::LeasesExpired));
            // A dependant that did not change for long is not forgotten.
            if version % 10_000 == 0 {
                timeline.add("a", dependant(version));
            }
        }
        let kept = timeline.of("a");
        assert!(
            kept.len() <= MAX_ENTRIES && kept.len() >= MAX_ENTRIES / 2,
            "{}",
            kept.len()
        );
        assert_eq!(
            timeline.dependant("a", KCM).map(|found| found.version),
            Some(90_000)
        );
        let first_cut = kept.iter().find(|entry| matches!(entry.fact, Fact::Cut { .. }));
        assert_eq!(
            first_cut.map(|entry| entry.fact.clone()),
            Some(Fact::Cut { cut: 5, of: 5 })
        );
    }
}
