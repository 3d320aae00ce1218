//! The record of a shoot's nodes, from its API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::bounded;
use crate::history::timeline::follow;
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
    _task: AbortOnDropHandle<()>,
}

impl NodeRecorder {
    /// Starts watching; when this returns, every node that there is has been seen.
    pub async fn start(client: &Client) -> anyhow::Result<Self> {
        let seen = Arc::<Mutex<Vec<NodeTransition>>>::default();
        let (started, mut listed) = watch::channel(0);
        let (transitions, mut last) = (seen.clone(), BTreeMap::new());
        let note = move |node: &Node, deleted: bool| {
            let ready = if deleted {
                "deleted".to_owned()
            } else {
                readiness(node)
            };
            let name = node.name_any();
            if last.insert(name.clone(), ready.clone()).as_ref() != Some(&ready) {
                transitions.lock().push(NodeTransition {
                    at: Timestamp::now(),
                    node: name,
                    ready,
                });
            }
        };
        let task = tokio::spawn(follow(Api::<Node>::all(client.clone()), started, note));
        let recorder = Self {
            seen,
            _task: AbortOnDropHandle::new(task),
        };
        let listed = timeout(BOUND, listed.wait_for(|lists| *lists == 1)).await;
        listed.context("the nodes could not be listed in time")??;
        Ok(recorder)
    }

    /// Every change so far, the first observation of a node included.
    pub fn transitions(&self) -> Vec<NodeTransition> {
        self.seen.lock().clone()
    }

    /// The nodes that were ever Unknown: what a meltdown begins with.
    pub fn ever_unknown(&self) -> BTreeSet<String> {
        let seen = self.seen.lock();
        let unknown = seen.iter().filter(|transition| transition.ready == "Unknown");
        unknown.map(|transition| transition.node.clone()).collect()
    }
}

/// The status of every node's Ready condition now, by name.
pub async fn node_readiness(client: &Client) -> anyhow::Result<BTreeMap<String, String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let list = bounded("list the nodes", nodes.list(&ListParams::default())).await?;
    Ok(list
        .iter()
        .map(|node| (node.name_any(), readiness(node)))
        .collect())
}

/// The status of a node's Ready condition; empty without one.
pub(crate) fn readiness(node: &Node) -> String {
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
