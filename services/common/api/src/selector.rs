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
pub(crate) fn validate(file: LabelSelector, at: &Section<'_>) -> Selector {
    let labels = file.match_labels.unwrap_or_default();
    let list = file.match_expressions.unwrap_or_default();
    if labels.is_empty() && list.is_empty() {
        at.wrong(
            "selects every pod of the namespace; name at least one label in matchLabels or matchExpressions",
        );
    }
    let mut expressions = BTreeSet::new();
    for (key, value) in labels {
        let at = at.below("matchLabels").below(&key);
        check_key(&at, &key);
        check_value(&at, &value);
        expressions.insert(Expression::In(key, BTreeSet::from([value])));
    }
    for (index, requirement) in list.into_iter().enumerate() {
        let at = at.below("matchExpressions").item(index);
        expressions.extend(expression(requirement, &at));
    }
    expressions.into_iter().collect()
}

fn expression(file: LabelSelectorRequirement, at: &Section<'_>) -> Option<Expression> {
    let LabelSelectorRequirement {
        key,
        operator,
        values,
    } = file;
    check_key(&at.below("key"), &key);
    let values: BTreeSet<String> = values.into_iter().flatten().collect();
    for value in &values {
        check_value(&at.below("values"), value);
    }
    let wrong = match (operator.as_str(), values.is_empty()) {
        ("In", false) => return Some(Expression::In(key, values)),
        ("NotIn", false) => return Some(Expression::NotIn(key, values)),
        ("Exists", true) => return Some(Expression::Exists(key)),
        ("DoesNotExist", true) => return Some(Expression::DoesNotExist(key)),
        ("In" | "NotIn", true) => "needs at least one value",
        ("Exists" | "DoesNotExist", false) => "takes no values",
        _ => "must be In, NotIn, Exists or DoesNotExist",
    };
    at.fault("operator", format_args!("{:?}: {wrong}", cut(&operator)));
    None
}

fn check_key(at: &Section<'_>, key: &str) {
    if !is_label_key(key) {
        let shown = cut(key);
        at.wrong(format_args!(
            "{shown:?} is not the key of a label, such as app or example.com/role"
        ));
    }
}

fn check_value(at: &Section<'_>, value: &str) {
    if !value.is_empty() && !is_label_name(value) {
        let shown = cut(value);
        at.wrong(format_args!(
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
