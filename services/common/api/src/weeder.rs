//! The configuration of the weeder: the file that Gardener writes for DWD's weeder.

use crate::{
    config::{self, ConfigErrors, Field, Parsed, UnknownFields, Value},
    names,
    selector::{self, Selector},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The weeder's configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeederConfig {
    /// For this long after a service recovered, its dependants are deleted; more than zero.
    pub watch_duration: Duration,
    /// How long a service must have been ready before its dependants are deleted.
    pub ready_for: Duration,
    /// Kinds of controllers whose pods are left alone.
    pub exclude_kinds: BTreeSet<String>,
    /// Also delete pods that no controller replaces.
    pub delete_pods_without_controller: bool,
    /// Also delete pods of Jobs.
    pub delete_pods_of_jobs: bool,
    /// Per service the selectors of the pods that depend on it; at least one service, and one selector for each.
    pub services: BTreeMap<String, Vec<Selector>>,
}

const FIELDS: &[Field] = &[
    &["watchDuration"],
    &["readyFor"],
    &["excludeKinds"],
    &["deletePodsWithoutController"],
    &["deletePodsOfJobs"],
    &["servicesAndDependantSelectors"],
];
const SERVICE_FIELDS: &[Field] = &[&["podSelectors"]];

/// Names of kinds that are worth a question when they are written in lower case or as a plural.
const KNOWN_KINDS: [&str; 6] = [
    "DaemonSet",
    "Deployment",
    "Etcd",
    "Job",
    "ReplicaSet",
    "StatefulSet",
];

const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);

/// Reads and checks a weeder configuration (YAML or JSON).
///
/// # Errors
/// Everything that is wrong with it, each with line and column.
pub fn parse(bytes: &[u8], unknown: UnknownFields) -> Result<Parsed<WeederConfig>, ConfigErrors> {
    config::read(bytes, unknown, convert)
}

fn convert(root: &Value<'_>) -> Option<WeederConfig> {
    let fields = root.section(FIELDS)?;
    let watch_duration = fields.or("watchDuration", names::DEFAULT_WATCH_DURATION, |value| {
        value.duration(MIN_WATCH_DURATION)
    });
    let ready_for = fields.or("readyFor", Duration::ZERO, |value| value.duration(Duration::ZERO));
    let exclude_kinds = fields.get("excludeKinds").map(kinds).unwrap_or_default();
    let services = fields
        .required("servicesAndDependantSelectors")
        .and_then(services);
    Some(WeederConfig {
        watch_duration,
        ready_for,
        exclude_kinds,
        delete_pods_without_controller: fields.or("deletePodsWithoutController", false, Value::boolean),
        delete_pods_of_jobs: fields.or("deletePodsOfJobs", false, Value::boolean),
        services: services.unwrap_or_default(),
    })
}

/// A pod names its controller, and that of a Deployment's pod is a ReplicaSet.
fn kinds(list: &Value<'_>) -> BTreeSet<String> {
    let mut kinds = BTreeSet::new();
    for item in list.items().unwrap_or_default() {
        let Some(kind) = item.text() else { continue };
        if kind == "Deployment" {
            item.error("names no controller of a pod; the controller of a Deployment's pods is a ReplicaSet");
        } else if !names::is_kind(kind) {
            let same = |known: &&str| kind.trim_end_matches('s').eq_ignore_ascii_case(known);
            let hint = KNOWN_KINDS.into_iter().find(same);
            let hint = hint.map_or_else(String::new, |known| format!("; did you mean {known:?}?"));
            item.error(format!("must be a kind, such as StatefulSet{hint}"));
        } else {
            kinds.insert(kind.to_owned());
        }
    }
    kinds
}

fn services(value: &Value<'_>) -> Option<BTreeMap<String, Vec<Selector>>> {
    let entries = value.entries()?;
    if entries.is_empty() {
        value.error("must name at least one service");
    }
    let mut services = BTreeMap::new();
    for (name, value) in entries {
        if !names::is_dns_label(name) {
            value.error(
                "the name of a service has lower-case letters, digits and -, and at most 63 characters",
            );
        }
        if let Some(selectors) = selectors(&value) {
            services.insert(name.to_owned(), selectors);
        }
    }
    Some(services)
}

fn selectors(service: &Value<'_>) -> Option<Vec<Selector>> {
    let fields = service.section(SERVICE_FIELDS)?;
    let list = fields.required("podSelectors")?;
    let items = list.items()?;
    if items.is_empty() {
        list.error("must hold at least one selector");
    }
    Some(items.iter().filter_map(selector::convert).collect())
}

#[cfg(test)]
mod tests;
