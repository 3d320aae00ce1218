//! Machines, as which machine-controller-manager knows the nodes of a shoot.

use crate::{list::ItemList, meta, names, text};
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};
use std::{borrow::Cow, sync::Arc};

/// Phase of a machine, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MachinePhase {
    /// machine-controller-manager is deleting the machine.
    Terminating,
    /// machine-controller-manager has given the machine up and will replace it.
    Failed,
    /// Any other phase, or none yet: the machine stands for its node.
    #[default]
    Other,
}

/// A `machine.sapcloud.io/v1alpha1` Machine of a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Raw")]
pub struct MachineItem {
    /// The machine's name.
    pub name: Arc<str>,
    /// Name of its node (label [`names::NODE_LABEL`]); `None` while the machine has none.
    pub node: Option<Arc<str>>,
    /// `status.currentStatus.phase`.
    pub phase: MachinePhase,
}

/// A page of machines.
pub type MachineList = ItemList<MachineItem>;

/// A `machine.sapcloud.io/v1alpha1` Machine of a watch. Reading one fails only on broken JSON.
#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    /// Name, namespace, resourceVersion, deletionTimestamp and the label [`names::NODE_LABEL`]; nothing else is kept.
    #[serde(default, deserialize_with = "machine_meta")]
    pub metadata: ObjectMeta,
    /// `status.currentStatus.phase`; anything unreadable counts as [`MachinePhase::Other`].
    #[serde(default, rename = "status", deserialize_with = "phase")]
    pub phase: MachinePhase,
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMeta,
    #[serde(default)]
    status: Option<RawStatus>,
}

#[derive(Deserialize)]
struct RawMeta {
    #[serde(deserialize_with = "text::shared")]
    name: Arc<str>,
    #[serde(default)]
    labels: Option<RawLabels>,
}

#[derive(Deserialize)]
struct RawLabels {
    #[serde(default)]
    node: Option<Arc<str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    #[serde(default)]
    current_status: Option<RawCurrentStatus>,
}

#[derive(Deserialize)]
struct RawCurrentStatus {
    #[serde(default)]
    phase: Option<MachinePhase>,
}

// === impl MachinePhase ===

impl From<&str> for MachinePhase {
    fn from(phase: &str) -> Self {
        match phase {
            "Terminating" => Self::Terminating,
            "Failed" => Self::Failed,
            _ => Self::Other,
        }
    }
}

impl<'de> Deserialize<'de> for MachinePhase {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&*text::Text::deserialize(deserializer)?.0))
    }
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
            phase: phase.unwrap_or_default(),
        }
    }
}

// === impl Machine ===

impl Machine {
    /// Name of the machine's node; `None` while it has none.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        let labels = self.metadata.labels.as_ref()?;
        labels
            .get(names::NODE_LABEL)
            .map(String::as_str)
            .filter(|node| !node.is_empty())
    }
}

impl kube::core::Resource for Machine {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Machine".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        names::MACHINE_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        names::V1ALPHA1.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "machines".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn machine_meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    use crate::lenient::Keep;
    const KEEP: Keep = Keep::Fields(&[
        ("name", Keep::All),
        ("namespace", Keep::All),
        ("uid", Keep::All),
        ("resourceVersion", Keep::All),
        ("deletionTimestamp", Keep::All),
        ("labels", Keep::Fields(&[(names::NODE_LABEL, Keep::All)])),
    ]);
    meta::read(deserializer, &KEEP)
}

fn phase<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MachinePhase, D::Error> {
    use crate::lenient::{Keep, Pruned};
    use serde::de::DeserializeSeed;
    const KEEP: Keep = Keep::Fields(&[("currentStatus", Keep::Fields(&[("phase", Keep::All)]))]);
    let status = Pruned(&KEEP).deserialize(deserializer)?;
    let phase = status
        .pointer("/currentStatus/phase")
        .and_then(serde_json::Value::as_str);
    Ok(phase.map(MachinePhase::from).unwrap_or_default())
}

#[cfg(test)]
mod tests;
