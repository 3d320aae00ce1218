//! `dependentResourceInfos`: what is scaled, and in which order.

use crate::{
    config::{POSITIVE, Section, secs},
    names,
    text::cut,
};
use serde::Deserialize;
use std::{collections::BTreeMap, fmt, time::Duration};

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
const MAX_REPLICAS: i32 = 10_000;

pub(super) fn validate(list: Vec<DependentFile>, at: &Section<'_>) -> Vec<DependentResource> {
    if list.is_empty() || list.len() > MAX_DEPENDENTS {
        let message = format_args!("must name 1 to {MAX_DEPENDENTS} resources, not {}", list.len());
        at.wrong(message);
        return Vec::new();
    }
    let mut seen = BTreeMap::new();
    let dependents = list.into_iter().enumerate().filter_map(|(index, file)| {
        let at = at.item(index);
        let dependent = dependent(file, &at)?;
        let at = at.below("ref");
        if let Some(first) = seen.insert(dependent.reference.clone(), at.path().to_owned()) {
            at.wrong(format_args!("names the same resource as {first}"));
        }
        Some(dependent)
    });
    dependents.collect()
}

fn dependent(file: DependentFile, at: &Section<'_>) -> Option<DependentResource> {
    if file.optional.is_some() && file.should_exist.is_some() {
        let message = "is the older, opposite name of \"optional\", which is also set; remove it";
        at.fault("shouldExist", message);
    }
    let optional = file.optional.unwrap_or(file.should_exist == Some(false));
    let reference = at.required("ref", file.r#ref);
    let reference = reference.and_then(|reference| checked_reference(reference, &at.below("ref")));
    let scale_up = at.required("scaleUp", file.scale_up);
    let scale_up = scale_up.map(|scale| scale_info(scale, 1, &at.below("scaleUp")));
    let scale_down = at.required("scaleDown", file.scale_down);
    let scale_down = scale_down.map(|scale| scale_info(scale, 0, &at.below("scaleDown")));
    Some(DependentResource {
        reference: reference?,
        optional,
        scale_up: scale_up?,
        scale_down: scale_down?,
    })
}

fn checked_reference(file: RefFile, at: &Section<'_>) -> Option<ResourceRef> {
    let text = |name, field: Option<String>, rule: fn(&str) -> bool, wanted| {
        let text = at.required(name, field)?;
        if !rule(&text) {
            at.fault(name, format_args!("must be {wanted}, not {:?}", cut(&text)));
        }
        Some(text)
    };
    let api_version = text("apiVersion", file.api_version, is_api_version, "like apps/v1");
    let kind = text("kind", file.kind, names::is_kind, "like Deployment");
    let name = at.required("name", file.name);
    Some(ResourceRef {
        api_version: api_version?,
        kind: kind?,
        name: at.object_name("name", name?),
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

/// As in DWD, `internal/prober/config.go`, which reads an absent level as 0.
fn scale_info(file: ScaleFile, least_replicas: i32, at: &Section<'_>) -> ScaleInfo {
    let range = least_replicas..=MAX_REPLICAS;
    let replicas = file.replicas;
    let replicas = replicas.map(|replicas| at.number("replicas", Some(replicas), 0, range));
    ScaleInfo {
        level: at.number("level", file.level, 0, 0..=1_000),
        initial_delay: at.duration("initialDelay", file.initial_delay, secs(0), secs(0)),
        timeout: at.duration("timeout", file.timeout, secs(30), POSITIVE),
        replicas,
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
