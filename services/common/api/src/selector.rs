//! Label selectors (`metav1.LabelSelector`): which pods depend on a service?
//!
//! kube's [`Selector`] matches labels and writes the query, so both follow the API server's rules. What is here reads
//! one from a configuration file and checks it as the API server would.

use crate::{config::Section, text::cut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Expression;
pub use kube::core::{Selector, SelectorExt};
use std::collections::BTreeSet;

/// Checks a selector of a configuration file. It names at least one label: an empty one would match every pod.
///
/// Its expressions are sorted and none is repeated, and a label that must have one value is a set of one value: two
/// selectors that are written differently share their query, and so their watch.
pub(crate) fn validate(file: LabelSelector, at: &Section<'_>) -> Option<Selector> {
    let labels = file.match_labels.unwrap_or_default();
    let list = file.match_expressions.unwrap_or_default();
    if labels.is_empty() && list.is_empty() {
        at.wrong(
            "selects every pod of the namespace; name at least one label in matchLabels or matchExpressions",
        );
        return None;
    }
    let mut expressions = BTreeSet::new();
    let at_labels = at.below("matchLabels");
    for (key, value) in labels {
        check_key(&at_labels, &key, &key);
        check_value(&at_labels.below(&key), &value);
        expressions.insert(Expression::In(key, BTreeSet::from([value])));
    }
    let at = at.below("matchExpressions");
    for (index, item) in list.into_iter().enumerate() {
        check_expression(&at.item(index), &item);
        expressions.extend(Expression::try_from(item));
    }
    Some(expressions.into_iter().collect())
}

fn check_expression(at: &Section<'_>, file: &LabelSelectorRequirement) {
    // Kubernetes' own type takes what is absent for empty.
    match &*file.key {
        "" => at.fault("key", "is required"),
        key => check_key(at, "key", key),
    }
    let (at_values, values) = match &file.values {
        Some(list) => (at.below("values"), list.as_slice()),
        None => (at.clone(), [].as_slice()),
    };
    for (index, value) in values.iter().enumerate() {
        check_value(&at_values.item(index), value);
    }
    match &*file.operator {
        "" => at.fault("operator", "is required"),
        name @ ("In" | "NotIn") if values.is_empty() => {
            at_values.wrong(format!("the operator {name} needs at least one value"));
        }
        name @ ("Exists" | "DoesNotExist") if !values.is_empty() => {
            at_values.wrong(format!("the operator {name} takes no values"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => {
            let message = format!("must be In, NotIn, Exists or DoesNotExist, not {:?}", cut(other));
            at.fault("operator", message);
        }
    }
}

fn check_key(at: &Section<'_>, field: &str, key: &str) {
    if !is_label_key(key) {
        let shown = cut(key);
        let message = format!("{shown:?} is not the key of a label, such as app or example.com/role");
        at.fault(field, message);
    }
}

fn check_value(at: &Section<'_>, value: &str) {
    if !value.is_empty() && !is_label_name(value) {
        let shown = cut(value);
        at.wrong(format!(
            "{shown:?} is not the value of a label: letters, digits, -, _ and ., at most 63"
        ));
    }
}

/// An optional DNS subdomain and a name.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => crate::names::is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

/// Starts and ends with a letter or digit, has `-`, `_` and `.` in between, and at most 63 characters.
fn is_label_name(name: &str) -> bool {
    let inner = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    inner && bytes.len() <= 63 && edge(bytes.first()) && edge(bytes.last())
}

#[cfg(test)]
mod tests;
