//! Machines, as which machine-controller-manager knows the nodes of a shoot.

use crate::{
    list::{ProviderSpec, RawItem},
    text,
};
use serde::Deserialize;
use std::sync::Arc;

/// Phase of a machine, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum MachinePhase {
    /// machine-controller-manager is deleting the machine.
    Terminating,
    /// machine-controller-manager has given the machine up and will replace it.
    Failed,
    /// Any other phase, or none yet: the machine stands for its node.
    #[default]
    #[serde(other)]
    Other,
}

/// A `machine.sapcloud.io/v1alpha1` Machine of a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Raw")]
pub struct MachineItem {
    /// The machine's name.
    pub name: Arc<str>,
    /// Name of its node, a label: machine-controller-manager, `pkg/apis/machine/v1alpha1` (`NodeLabelKey`). `None`
    /// while the machine has none.
    pub node: Option<Arc<str>>,
    /// `spec.providerID`, which is that of its node; `None` while the machine has none.
    pub provider_id: Option<Arc<str>>,
    /// `status.currentStatus.phase`.
    pub phase: MachinePhase,
}

type Raw = RawItem<ProviderSpec, RawStatus, RawLabels>;

#[derive(Deserialize)]
struct RawLabels {
    #[serde(default, deserialize_with = "text::label")]
    node: Option<Arc<str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    current_status: Option<RawCurrentStatus>,
}

#[derive(Deserialize)]
struct RawCurrentStatus {
    phase: Option<MachinePhase>,
}

// === impl MachineItem ===

impl From<Raw> for MachineItem {
    fn from(raw: Raw) -> Self {
        let phase = raw
            .status
            .and_then(|status| status.current_status)
            .and_then(|status| status.phase);
        Self {
            name: raw.metadata.name,
            node: raw
                .metadata
                .labels
                .and_then(|labels| labels.node)
                .filter(|node| !node.is_empty()),
            provider_id: raw.spec.and_then(|spec| spec.provider_id),
            phase: phase.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
