//! `dependentResourceInfos`: what is scaled, and in which order.

use crate::{
    config::{POSITIVE, Section, secs},
    names,
    workload::MAX_REPLICAS,
};
use serde::Deserialize;
use std::{fmt, time::Duration};

/// A workload that is scaled down when a shoot's nodes are cut off, and restored afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependentResource {
    /// The resource.
    pub reference: ResourceRef,
    /// True if a shoot may be without it.
    pub optional: bool,
    /// How it is restored.
    pub scale_up: ScaleInfo,
    /// How it is scaled down.
    pub scale_down: ScaleInfo,
}

/// Refers to a workload in a shoot's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceRef {
    /// Group and version, such as `apps/v1`; `v1` alone for the core group.
    pub api_version: String,
    /// Kind, such as `Deployment`.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// How a workload is scaled in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleInfo {
    /// Levels run in ascending order, from 0; those of one level at once.
    pub level: i32,
    /// Waited once when the level starts, if there is something to be done.
    pub initial_delay: Duration,
    /// For the operation, the wait for its effect included; more than zero.
    pub timeout: Duration,
    /// Replicas to scale to; up at least 1. `None` means the recorded count or 1 for up, 0 for down.
    pub replicas: Option<i32>,
}

/// An entry of the list, as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DependentFile {
    r#ref: Option<RefFile>,
    optional: Option<bool>,
    /// Until 2022: the opposite of optional.
    should_exist: Option<bool>,
    scale_up: Option<ScaleFile>,
    scale_down: Option<ScaleFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefFile {
    api_version: Option<String>,
    kind: Option<String>,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScaleFile {
    level: Option<i32>,
    initial_delay: Option<String>,
    timeout: Option<String>,
    replicas: Option<i32>,
}

/// Bounds the work per shoot; Gardener has three.
const MAX_DEPENDENTS: usize = 100;

pub(super) fn validate(list: Vec<DependentFile>, at: &Section<'_>) -> Option<Vec<DependentResource>> {
    let at = at.below("dependentResourceInfos");
    if list.is_empty() {
        at.wrong("must name at least one resource");
    }
    if list.len() > MAX_DEPENDENTS {
        at.wrong(format!(
            "must name at most {MAX_DEPENDENTS} resources, not {}",
            list.len()
        ));
        return None;
    }
    let mut seen: Vec<(usize, ResourceRef)> = Vec::new();
    let mut dependents = Vec::with_capacity(list.len());
    for (index, value) in list.into_iter().enumerate() {
        let at_item = at.item(index);
        let optional = optional(value.optional, value.should_exist, &at_item);
        let scale_up = at_item.required("scaleUp", value.scale_up);
        let scale_up = scale_up.map(|scale| scale_info("scaleUp", scale, 1, &at_item));
        let scale_down = at_item.required("scaleDown", value.scale_down);
        let scale_down = scale_down.map(|scale| scale_info("scaleDown", scale, 0, &at_item));
        let at_reference = at_item.below("ref");
        let file = at_item.required("ref", value.r#ref);
        let Some(reference) = file.and_then(|file| reference(file, &at_reference)) else {
            continue;
        };
        if let Some((first, _)) = seen.iter().find(|(_, known)| *known == reference) {
            let first = at.item(*first).below("ref");
            at_reference.wrong(format!("{reference} is already named by {}", first.path()));
            continue;
        }
        seen.push((index, reference.clone()));
        if let (Some(scale_up), Some(scale_down)) = (scale_up, scale_down) {
            dependents.push(DependentResource {
                reference,
                optional,
                scale_up,
                scale_down,
            });
        }
    }
    Some(dependents)
}

fn optional(optional: Option<bool>, should_exist: Option<bool>, at: &Section<'_>) -> bool {
    if optional.is_some() && should_exist.is_some() {
        let message = "is the older, opposite name of \"optional\", which is also set; remove it";
        at.fault("shouldExist", message);
    }
    optional.unwrap_or(should_exist == Some(false))
}

fn reference(file: RefFile, at: &Section<'_>) -> Option<ResourceRef> {
    let api_version = at.text("apiVersion", file.api_version, is_api_version, "like apps/v1");
    let kind = at.text("kind", file.kind, names::is_kind, "like Deployment");
    let name = at.object_name("name", file.name);
    Some(ResourceRef {
        api_version: api_version?,
        kind: kind?,
        name: name?,
    })
}

/// `group/version`, or a version of the core group.
fn is_api_version(text: &str) -> bool {
    let (group, version) = match text.split_once('/') {
        Some((group, version)) => (Some(group), version),
        None => (None, text),
    };
    let is_version = version.starts_with('v')
        && version.as_bytes().get(1).is_some_and(u8::is_ascii_digit)
        && version
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    is_version && group.is_none_or(names::is_dns_subdomain)
}

fn scale_info(field: &str, scale: ScaleFile, least_replicas: i32, at: &Section<'_>) -> ScaleInfo {
    let at = at.below(field);
    let replicas = |replicas| at.number("replicas", replicas, least_replicas..=MAX_REPLICAS);
    // As in DWD, `internal/prober/config.go`, which reads an absent level as 0.
    ScaleInfo {
        level: at.number("level", scale.level.unwrap_or(0), 0..=1_000),
        initial_delay: at.duration("initialDelay", scale.initial_delay, secs(0), secs(0)..),
        timeout: at.duration("timeout", scale.timeout, secs(30), POSITIVE..),
        replicas: scale.replicas.map(replicas),
    }
}

// === impl ResourceRef ===

impl ResourceRef {
    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The version within the group.
    #[must_use]
    pub fn version(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or(self.api_version.as_str(), |(_, version)| version)
    }
}

impl fmt::Display for ResourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.api_version, self.kind, self.name)
    }
}
