//! The record of a shoot's nodes, from its API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::bail;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::bounded;
use crate::wait::BOUND;

/// A change of a node's Ready condition, or of its disappearance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTransition {
    /// When it was seen.
    pub at: Timestamp,
    /// The node's name.
    pub node: String,
    /// Status of the Ready condition: "True", "False", "Unknown"; "" without one; "deleted" when the node is gone.
    pub ready: String,
}

/// Watches the nodes from its start on and misses no change of their Ready condition.
#[derive(Debug)]
#[must_use = "nothing is recorded any more when this is dropped"]
pub struct NodeRecorder {
    seen: Arc<Mutex<Vec<NodeTransition>>>,
    task: AbortHandle,
}

impl NodeRecorder {
    /// Starts watching; when this returns, every node that there is has been seen.
    ///
    /// # Errors
    /// When the first list does not come to an end.
    pub async fn start(client: &Client) -> anyhow::Result<Self> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (started, first_list) = oneshot::channel();
        let task = tokio::spawn(record(client.clone(), Arc::clone(&seen), started)).abort_handle();
        let recorder = Self { seen, task };
        match timeout(BOUND, first_list).await {
            Ok(Ok(())) => Ok(recorder),
            _ => bail!("the nodes could not be listed within {BOUND:?}"),
        }
    }

    /// Every change so far, the first observation of a node included.
    #[must_use]
    pub fn transitions(&self) -> Vec<NodeTransition> {
        self.seen.lock().clone()
    }

    /// The nodes that were ever Unknown: what a meltdown begins with.
    #[must_use]
    pub fn ever_unknown(&self) -> BTreeSet<String> {
        self.seen
            .lock()
            .iter()
            .filter(|t| t.ready == "Unknown")
            .map(|t| t.node.clone())
            .collect()
    }
}

impl Drop for NodeRecorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn record(client: Client, seen: Arc<Mutex<Vec<NodeTransition>>>, started: oneshot::Sender<()>) {
    let mut started = Some(started);
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    let mut note = |node: &Node, ready: String| {
        let name = node.name_any();
        if last.insert(name.clone(), ready.clone()).as_ref() != Some(&ready) {
            seen.lock().push(NodeTransition {
                at: Timestamp::now(),
                node: name,
                ready,
            });
        }
    };
    let events = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(node) | Event::InitApply(node)) => note(&node, readiness(&node)),
            Ok(Event::Delete(node)) => note(&node, "deleted".to_owned()),
            Ok(Event::InitDone) => {
                if let Some(started) = started.take() {
                    let _ = started.send(());
                }
            }
            // The watcher lists again by itself.
            Ok(Event::Init) | Err(_) => {}
        }
    }
}

/// The status of every node's Ready condition now, by name.
///
/// # Errors
/// When the API server does not answer.
pub async fn node_readiness(client: &Client) -> anyhow::Result<BTreeMap<String, String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let list = bounded("list the nodes", nodes.list(&ListParams::default())).await?;
    Ok(list
        .iter()
        .map(|node| (node.name_any(), readiness(node)))
        .collect())
}

fn readiness(node: &Node) -> String {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|c| c.type_ == "Ready")
        .map(|c| c.status.clone())
        .next()
        .unwrap_or_default()
}
