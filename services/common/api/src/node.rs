//! Nodes of a shoot: which of them may testify?

use crate::{
    bounded::Bounded,
    list::{ProviderSpec, RawItem},
    names, text,
};
use serde::Deserialize;
use std::sync::Arc;

/// A `v1` Node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Raw")]
pub struct NodeItem {
    /// The node's name.
    pub name: Arc<str>,
    /// Label of its worker pool: Gardener, `pkg/apis/core/v1beta1/constants` (`LabelWorkerPool`).
    pub pool: Option<Arc<str>>,
    /// Label of its zone: Kubernetes, well-known labels.
    pub zone: Option<Arc<str>>,
    /// `spec.providerID`, by which its Machine is found; `None` where it has none.
    pub provider_id: Option<Arc<str>>,
    /// True if the annotation is there, whatever its value: machine-controller-manager,
    /// `pkg/util/provider/machineutils` (`NotManagedByMCM`).
    pub not_managed_by_mcm: bool,
    /// `status.conditions`.
    pub conditions: Vec<NodeCondition>,
}

/// An entry of `status.conditions`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeCondition {
    /// Such as `Ready` or `DiskPressure`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: Box<str>,
    /// One word that says why.
    #[serde(default)]
    pub reason: Box<str>,
}

/// A node has some ten conditions, with node-problem-detector some thirty.
const MOST_CONDITIONS: usize = 128;

type Raw = RawItem<ProviderSpec, RawStatus, RawLabels, RawAnnotations>;

#[derive(Default, Deserialize)]
struct RawLabels {
    #[serde(
        default,
        rename = "worker.gardener.cloud/pool",
        deserialize_with = "text::label"
    )]
    pool: Option<Arc<str>>,
    #[serde(
        default,
        rename = "topology.kubernetes.io/zone",
        deserialize_with = "text::label"
    )]
    zone: Option<Arc<str>>,
}

#[derive(Default, Deserialize)]
struct RawAnnotations {
    #[serde(
        default,
        rename = "node.machine.sapcloud.io/not-managed-by-mcm",
        deserialize_with = "text::present"
    )]
    not_managed_by_mcm: bool,
}

#[derive(Deserialize)]
struct RawStatus {
    conditions: Option<Bounded<NodeCondition, MOST_CONDITIONS>>,
}

// === impl NodeItem ===

impl NodeItem {
    /// True if machine-controller-manager updates the node in place, or failed to: its kubelet may be silent then.
    #[must_use]
    pub fn in_place_update(&self) -> bool {
        self.conditions.iter().any(|condition| {
            &*condition.kind == names::IN_PLACE_UPDATE_CONDITION
                && names::IN_PLACE_UPDATE_REASONS.contains(&&*condition.reason)
        })
    }

    /// The types of the conditions that are True.
    pub fn true_conditions(&self) -> impl Iterator<Item = &str> {
        self.conditions
            .iter()
            .filter(|condition| &*condition.status == "True")
            .map(|condition| &*condition.kind)
    }
}

impl From<Raw> for NodeItem {
    fn from(raw: Raw) -> Self {
        let labels = raw.metadata.labels.unwrap_or_default();
        Self {
            name: raw.metadata.name,
            pool: labels.pool,
            zone: labels.zone,
            provider_id: raw.spec.and_then(|spec| spec.provider_id),
            not_managed_by_mcm: raw
                .metadata
                .annotations
                .is_some_and(|found| found.not_managed_by_mcm),
            conditions: raw
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default()
                .0,
        }
    }
}

#[cfg(test)]
mod tests;
