//! Label selectors (`metav1.LabelSelector`): which pods depend on a service?
//!
//! kube's [`Selector`] matches labels and writes the query, so both follow the API server's rules. What is here reads
//! one from a configuration file and checks it as the API server would.

use crate::config::{Field, Value};
use kube::core::Expression;
pub use kube::core::{Selector, SelectorExt};
use std::collections::BTreeSet;

const FIELDS: &[Field] = &[&["matchLabels"], &["matchExpressions"]];
const EXPRESSION_FIELDS: &[Field] = &[&["key"], &["operator"], &["values"]];

/// Reads a selector from a configuration file. It names at least one label: an empty one would match every pod.
///
/// Its expressions are sorted and none is repeated, and a label that must have one value is a set of one value: two
/// selectors that are written differently share their query, and so their watch.
pub(crate) fn convert(value: &Value<'_>) -> Option<Selector> {
    let fields = value.section(FIELDS)?;
    let mut expressions = BTreeSet::new();
    let mut entries = 0;
    for (key, label) in fields
        .get("matchLabels")
        .and_then(Value::entries)
        .unwrap_or_default()
    {
        entries += 1;
        check_key(&label, key);
        let value = label_value(&label);
        expressions.extend(value.map(|value| Expression::In(key.to_owned(), BTreeSet::from([value]))));
    }
    for item in fields
        .get("matchExpressions")
        .and_then(Value::items)
        .unwrap_or_default()
    {
        entries += 1;
        expressions.extend(expression(&item));
    }
    if entries == 0 {
        value.error(
            "selects every pod of the namespace; name at least one label in matchLabels or matchExpressions",
        );
        return None;
    }
    Some(expressions.into_iter().collect())
}

fn expression(value: &Value<'_>) -> Option<Expression> {
    let fields = value.section(EXPRESSION_FIELDS)?;
    let key = fields.required("key").and_then(|value| {
        let key = value.text()?;
        check_key(value, key).then(|| key.to_owned())
    });
    let operator = fields.required("operator");
    let name = operator.and_then(Value::text)?;
    let list = fields.get("values");
    let values = list.and_then(Value::items).unwrap_or_default();
    let values: BTreeSet<String> = values.iter().filter_map(label_value).collect();
    let at = list.unwrap_or(value);
    match name {
        "In" | "NotIn" if values.is_empty() => {
            at.error(format!("the operator {name} needs at least one value"));
            None
        }
        "In" => Some(Expression::In(key?, values)),
        "NotIn" => Some(Expression::NotIn(key?, values)),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            at.error(format!("the operator {name} takes no values"));
            None
        }
        "Exists" => Some(Expression::Exists(key?)),
        "DoesNotExist" => Some(Expression::DoesNotExist(key?)),
        other => {
            let other = crate::yaml::cut(other);
            operator?.error(format!(
                "must be In, NotIn, Exists or DoesNotExist, not {other:?}"
            ));
            None
        }
    }
}

fn check_key(at: &Value<'_>, key: &str) -> bool {
    let valid = is_label_key(key);
    if !valid {
        at.error(format!(
            "{:?} is not the key of a label, such as app or example.com/role",
            crate::yaml::cut(key)
        ));
    }
    valid
}

fn label_value(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if text.is_empty() || is_label_name(text) {
        return Some(text.to_owned());
    }
    let shown = crate::yaml::cut(text);
    value.error(format!(
        "{shown:?} is not the value of a label: letters, digits, -, _ and ., at most 63"
    ));
    None
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
