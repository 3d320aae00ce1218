//! `dependentResourceInfos`: what is scaled, and in which order.

use super::{POSITIVE, object_name};
use crate::{
    config::{Field, Section, Value},
    names,
};
use std::{collections::HashMap, fmt, time::Duration};

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

const FIELDS: &[Field] = &[
    &["ref"],
    &["optional"],
    // Until 2022: the opposite of optional.
    &["shouldExist"],
    &["scaleUp"],
    &["scaleDown"],
];
const REF_FIELDS: &[Field] = &[&["apiVersion"], &["kind"], &["name"]];
const SCALE_FIELDS: &[Field] = &[&["level"], &["initialDelay"], &["timeout"], &["replicas"]];

/// Bounds the work per shoot; Gardener has three.
const MAX_DEPENDENTS: usize = 100;
const MAX_LEVEL: i32 = 1_000;
const MAX_REPLICAS: i32 = 10_000;

pub(super) fn convert(list: &Value<'_>) -> Option<Vec<DependentResource>> {
    let items = list.items()?;
    if items.is_empty() {
        list.error("must name at least one resource");
    }
    if items.len() > MAX_DEPENDENTS {
        list.error(format!(
            "must name at most {MAX_DEPENDENTS} resources, not {}",
            items.len()
        ));
        return None;
    }
    let mut seen: HashMap<ResourceRef, String> = HashMap::new();
    let mut dependents = Vec::with_capacity(items.len());
    for item in &items {
        let Some(fields) = item.section(FIELDS) else {
            continue;
        };
        let reference = fields
            .required("ref")
            .and_then(|value| Some((value, reference(value)?)));
        let optional = optional(&fields);
        let scale_up = fields.required("scaleUp").and_then(|value| scale_info(value, 1));
        let scale_down = fields
            .required("scaleDown")
            .and_then(|value| scale_info(value, 0));
        let Some((at, reference)) = reference else {
            continue;
        };
        if let Some(first) = seen.get(&reference) {
            at.error(format!("{reference} is named before, by {first}"));
            continue;
        }
        seen.insert(reference.clone(), at.path().to_owned());
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

fn optional(fields: &Section<'_>) -> bool {
    match (fields.get("optional"), fields.get("shouldExist")) {
        (Some(_), Some(old)) => {
            old.error("is the older, opposite name of \"optional\", which is given too; remove it");
            false
        }
        (Some(optional), None) => optional.boolean().unwrap_or(false),
        (None, Some(should_exist)) => !should_exist.boolean().unwrap_or(true),
        (None, None) => false,
    }
}

fn reference(value: &Value<'_>) -> Option<ResourceRef> {
    let fields = value.section(REF_FIELDS)?;
    let api_version = fields
        .required("apiVersion")
        .and_then(|value| checked(value, is_api_version, "like apps/v1"));
    let kind = fields
        .required("kind")
        .and_then(|value| checked(value, names::is_kind, "like Deployment"));
    let name = fields.required("name").and_then(object_name);
    Some(ResourceRef {
        api_version: api_version?,
        kind: kind?,
        name: name?,
    })
}

fn checked(value: &Value<'_>, rule: fn(&str) -> bool, wanted: &str) -> Option<String> {
    let text = value.text()?;
    if rule(text) {
        return Some(text.to_owned());
    }
    value.error(format!("must be {wanted}, not {:?}", crate::yaml::cut(text)));
    None
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

fn scale_info(value: &Value<'_>, least_replicas: i32) -> Option<ScaleInfo> {
    let fields = value.section(SCALE_FIELDS)?;
    // DWD reads an absent level as 0.
    let level = fields.or("level", 0, |value| value.integer(0..=MAX_LEVEL));
    let initial_delay = fields.or("initialDelay", names::DEFAULT_SCALE_INITIAL_DELAY, |value| {
        value.duration(Duration::ZERO)
    });
    let timeout = fields.or("timeout", names::DEFAULT_SCALE_TIMEOUT, |value| {
        value.duration(POSITIVE)
    });
    let replicas = fields
        .get("replicas")
        .and_then(|value| value.integer(least_replicas..=MAX_REPLICAS));
    Some(ScaleInfo {
        level,
        initial_delay,
        timeout,
        replicas,
    })
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
