//! Label selectors (`metav1.LabelSelector`): which pods depend on a service?

use crate::config::{Field, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A label selector; all of its requirements must hold. There is at least one: an empty selector would match every pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// What is asked of its value.
    pub operator: Operator,
}

/// What is asked of a label's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label is there and has one of these values; at least one.
    In(BTreeSet<String>),
    /// The label is absent or has none of these values; at least one.
    NotIn(BTreeSet<String>),
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

const FIELDS: &[Field] = &[Field::new("matchLabels"), Field::new("matchExpressions")];
const EXPRESSION_FIELDS: &[Field] = &[Field::new("key"), Field::new("operator"), Field::new("values")];

// === impl Selector ===

impl Selector {
    /// The requirements, sorted, without repetition.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.holds(labels.get(&requirement.key).map(String::as_str)))
    }

    /// The selector as the API server's query parameter `labelSelector` (not percent-encoded), in kubectl's notation.
    #[must_use]
    pub fn to_query(&self) -> String {
        self.requirements
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_query())
    }
}

// === impl Requirement ===

impl Requirement {
    /// Whether the requirement holds for the value of its label, `None` when the object lacks the label.
    #[must_use]
    pub fn holds(&self, value: Option<&str>) -> bool {
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            // As in Kubernetes, an object without the label is not in any set.
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let list =
            |values: &BTreeSet<String>| values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        match &self.operator {
            Operator::In(values) => write!(f, "{key} in ({})", list(values)),
            Operator::NotIn(values) => write!(f, "{key} notin ({})", list(values)),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

// === reading ===

/// Reads a selector from a configuration file.
pub(crate) fn convert(value: &Value<'_>) -> Option<Selector> {
    let fields = value.section(FIELDS)?;
    let mut requirements = BTreeSet::new();
    let mut entries = 0;
    for (key, label) in fields
        .get("matchLabels")
        .and_then(Value::entries)
        .unwrap_or_default()
    {
        entries += 1;
        check_key(&label, key);
        let value = label_value(&label).map(|value| BTreeSet::from([value]));
        requirements.extend(value.map(|values| Requirement {
            key: key.to_owned(),
            operator: Operator::In(values),
        }));
    }
    for expression in fields
        .get("matchExpressions")
        .and_then(Value::items)
        .unwrap_or_default()
    {
        entries += 1;
        requirements.extend(requirement(&expression));
    }
    if entries == 0 {
        value.error(
            "selects every pod of the namespace; name at least one label in matchLabels or matchExpressions",
        );
        return None;
    }
    Some(Selector {
        requirements: requirements.into_iter().collect(),
    })
}

fn requirement(value: &Value<'_>) -> Option<Requirement> {
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
    let operator = match name {
        "In" | "NotIn" if values.is_empty() => {
            at.error(format!("the operator {name} needs at least one value"));
            return None;
        }
        "In" => Operator::In(values),
        "NotIn" => Operator::NotIn(values),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            at.error(format!("the operator {name} takes no values"));
            return None;
        }
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => {
            let other = crate::yaml::cut(other);
            operator?.error(format!(
                "must be In, NotIn, Exists or DoesNotExist, not {other:?}"
            ));
            return None;
        }
    };
    Some(Requirement { key: key?, operator })
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
        Some((prefix, name)) => crate::prober::is_object_name(prefix) && is_label_name(name),
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
