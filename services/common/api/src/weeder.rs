//! The configuration of the weeder: the file that Gardener writes for DWD's weeder.

use crate::{
    config::{self, ConfigErrors, Parsed, Section, UnknownFields, secs},
    names,
    selector::{self, Selector},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
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

/// The file, as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WeederFile {
    watch_duration: Option<String>,
    ready_for: Option<String>,
    exclude_kinds: Option<Vec<String>>,
    delete_pods_without_controller: Option<bool>,
    delete_pods_of_jobs: Option<bool>,
    services_and_dependant_selectors: Option<BTreeMap<String, ServiceFile>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceFile {
    pod_selectors: Option<Vec<LabelSelector>>,
}

/// Names of kinds that are worth a question when they are written in lower case or as a plural.
const KNOWN_KINDS: [&str; 6] = [
    "DaemonSet",
    "Deployment",
    "Etcd",
    "Job",
    "ReplicaSet",
    "StatefulSet",
];

/// Reads and checks a weeder configuration (YAML or JSON).
///
/// # Errors
/// The first fault of form, or everything that is wrong with its content, each with line and column.
pub fn parse(bytes: &[u8], unknown: UnknownFields) -> Result<Parsed<WeederConfig>, ConfigErrors> {
    config::read(bytes, unknown, validate)
}

fn validate(file: WeederFile, at: &Section<'_>) -> Option<WeederConfig> {
    let services = at.required(
        "servicesAndDependantSelectors",
        file.services_and_dependant_selectors,
    );
    Some(WeederConfig {
        // The default is that of DWD, `internal/weeder/config.go`.
        watch_duration: at.duration("watchDuration", file.watch_duration, secs(300), secs(1)..),
        ready_for: at.duration("readyFor", file.ready_for, secs(0), secs(0)..),
        exclude_kinds: kinds(file.exclude_kinds.unwrap_or_default(), at),
        delete_pods_without_controller: file.delete_pods_without_controller.unwrap_or(false),
        delete_pods_of_jobs: file.delete_pods_of_jobs.unwrap_or(false),
        services: validate_services(services?, at),
    })
}

/// A pod names its controller, and that of a Deployment's pod is a ReplicaSet.
fn kinds(list: Vec<String>, at: &Section<'_>) -> BTreeSet<String> {
    let mut kinds = BTreeSet::new();
    for (index, kind) in list.into_iter().enumerate() {
        let at = at.below("excludeKinds").item(index);
        if kind == "Deployment" {
            at.wrong("is not the kind of a pod's controller; the controller of a Deployment's pods is a ReplicaSet");
        } else if !names::is_kind(&kind) {
            let same = |known: &&str| kind.trim_end_matches('s').eq_ignore_ascii_case(known);
            let hint = KNOWN_KINDS.into_iter().find(same);
            let hint = hint.map_or_else(String::new, |known| format!("; did you mean {known:?}?"));
            at.wrong(format!("must be a kind, such as StatefulSet{hint}"));
        } else {
            kinds.insert(kind);
        }
    }
    kinds
}

fn validate_services(
    services: BTreeMap<String, ServiceFile>,
    at: &Section<'_>,
) -> BTreeMap<String, Vec<Selector>> {
    let at = at.below("servicesAndDependantSelectors");
    if services.is_empty() {
        at.wrong("must name at least one service");
    }
    let mut valid = BTreeMap::new();
    for (name, service) in services {
        let at = at.below(&name);
        if !names::is_dns_label(&name) {
            at.wrong("the name of a service has lower-case letters, digits and -, and at most 63 characters");
        }
        if let Some(list) = at.required("podSelectors", service.pod_selectors) {
            valid.insert(name, selectors(list, &at.below("podSelectors")));
        }
    }
    valid
}

fn selectors(list: Vec<LabelSelector>, at: &Section<'_>) -> Vec<Selector> {
    if list.is_empty() {
        at.wrong("must hold at least one selector");
    }
    let items = list.into_iter().enumerate();
    let valid = items.filter_map(|(index, item)| selector::validate(item, &at.item(index)));
    valid.collect()
}

#[cfg(test)]
mod tests;
