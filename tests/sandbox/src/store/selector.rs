//! Label and field selectors in their query-string form.

use serde_json::Value;

use super::object::Object;
use crate::{resource::ResourceType, status::ApiError};

/// A parsed label selector; empty matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

impl Requirement {
    fn matches(&self, object: &Object) -> bool {
        let label = |key: &str| object.label(key);
        let number = |key: &str| label(key).and_then(|text| text.parse::<i64>().ok());
        match self {
            Self::In(key, values) => {
                label(key).is_some_and(|label| values.iter().any(|value| value == label))
            }
            // An absent label satisfies `!=` and `notin`.
            Self::NotIn(key, values) => {
                label(key).is_none_or(|label| values.iter().all(|value| value != label))
            }
            Self::Exists(key) => label(key).is_some(),
            Self::Absent(key) => label(key).is_none(),
            Self::Greater(key, bound) => number(key).is_some_and(|number| number > *bound),
            Self::Less(key, bound) => number(key).is_some_and(|number| number < *bound),
        }
    }
}

impl LabelSelector {
    /// Parses the grammar of `labelSelector=`: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.
    ///
    /// # Errors
    /// 400, worded as the real server does.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        split_top_level(text)
            .into_iter()
            .map(|part| {
                parse_requirement(part)
                    .ok_or_else(|| ApiError::bad_request(format!("unable to parse requirement: {part}")))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// True if the object's labels satisfy every requirement.
    pub fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|requirement| requirement.matches(object))
    }

    /// True if everything matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Splits at commas outside parentheses.
fn split_top_level(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
    .collect()
}

fn parse_requirement(part: &str) -> Option<Requirement> {
    if let Some(key) = part.strip_prefix('!') {
        return Some(Requirement::Absent(label_key(key)?));
    }
    if let Some(open) = part.find('(') {
        let values = part.get(open + 1..)?.strip_suffix(')')?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let (key, operator) = part.get(..open)?.trim().rsplit_once(char::is_whitespace)?;
        return match operator {
            "in" => Some(Requirement::In(label_key(key)?, values)),
            "notin" => Some(Requirement::NotIn(label_key(key)?, values)),
            _ => None,
        };
    }
    for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = part.split_once(operator) {
            let (key, values) = (label_key(key)?, vec![label_value(value)?]);
            return Some(if negated {
                Requirement::NotIn(key, values)
            } else {
                Requirement::In(key, values)
            });
        }
    }
    if let Some((key, bound)) = part.split_once('>') {
        return Some(Requirement::Greater(label_key(key)?, bound.trim().parse().ok()?));
    }
    if let Some((key, bound)) = part.split_once('<') {
        return Some(Requirement::Less(label_key(key)?, bound.trim().parse().ok()?));
    }
    Some(Requirement::Exists(label_key(part)?))
}

fn label_key(text: &str) -> Option<String> {
    let text = text.trim();
    let valid = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!text.is_empty() && text.chars().all(valid)).then(|| text.to_owned())
}

fn label_value(text: &str) -> Option<String> {
    let text = text.trim();
    let valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.chars().all(valid).then(|| text.to_owned())
}

/// A parsed field selector; empty matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldTerm>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTerm {
    pointer: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses `fieldSelector=` for a resource: `metadata.name=a,status.phase!=Running`.
    ///
    /// # Errors
    /// 400 for a field that the kind does not index, or for a malformed term.
    pub fn parse(text: &str, res: &ResourceType) -> Result<Self, ApiError> {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (field, value, equal) = [("!=", false), ("==", true), ("=", true)]
                    .into_iter()
                    .find_map(|(operator, equal)| part.split_once(operator).map(|(f, v)| (f, v, equal)))
                    .ok_or_else(|| {
                        ApiError::bad_request(format!(
                            "invalid selector: '{part}'; can't understand '{part}'"
                        ))
                    })?;
                if !indexed(res, field) {
                    return Err(ApiError::bad_request(unsupported(res, field)));
                }
                let pointer = format!("/{}", field.replace('.', "/"));
                Ok(FieldTerm {
                    pointer,
                    value: value.to_owned(),
                    equal,
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// A selector for one name.
    pub fn name(name: &str) -> Self {
        Self(vec![FieldTerm {
            pointer: "/metadata/name".into(),
            value: name.to_owned(),
            equal: true,
        }])
    }

    /// Adds the requirements of another selector.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// True if the object satisfies every term.
    pub fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|term| {
            let matches = match object.value().pointer(&term.pointer) {
                Some(Value::Bool(flag)) => flag.to_string() == term.value,
                Some(Value::String(text)) => *text == term.value,
                _ => term.value.is_empty() || term.value == "false",
            };
            matches == term.equal
        })
    }

    /// True if everything matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that the selector asks for, if it asks for one: what authorisation of lists looks at.
    pub fn exact_name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|term| term.equal && term.pointer == "/metadata/name")
            .map(|term| term.value.as_str())
    }
}

/// The two ways in which the real server says that it does not know a field.
fn unsupported(res: &ResourceType, field: &str) -> String {
    let plain = !res.custom && indexes(res).is_empty();
    if plain {
        format!("\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    } else {
        format!("field label not supported: {field}")
    }
}

/// True if a kind can be selected by a field.
fn indexed(res: &ResourceType, field: &str) -> bool {
    field == "metadata.name"
        || (res.namespaced && field == "metadata.namespace")
        || indexes(res).contains(&field)
}

/// The fields besides name and namespace that the real server can select by, per kind.
fn indexes(res: &ResourceType) -> &'static [&'static str] {
    match (res.group.as_ref(), res.plural.as_ref()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "reason",
            "regarding.kind",
            "regarding.name",
            "regarding.namespace",
            "type",
        ],
        ("apps", "replicasets") => &["status.replicas"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{resource::builtin, store::object::StoreKey};
    use serde_json::json;

    fn object(labels: Value) -> Object {
        let value = json!({
            "metadata": { "name": "o", "namespace": "n", "labels": labels },
            "status": { "phase": "Running" },
        });
        Object::new(StoreKey::new("n", "o"), 1, value)
    }

    #[test]
    fn label_grammar() {
        let object = object(json!({ "a": "1", "b": "x", "example.com/c": "" }));
        for (text, expected) in [
            ("", true),
            ("a=1", true),
            ("a==1,b=x", true),
            ("a!=1", false),
            ("z!=1", true),
            ("b in (x, y)", true),
            ("b in (y)", false),
            ("b notin (y,z)", true),
            ("z notin (y)", true),
            ("a,!z", true),
            ("!a", false),
            ("z", false),
            ("a>0,a<2", true),
            ("a>1", false),
            ("example.com/c=", true),
            ("example.com/c", true),
            ("b in (x),a in (2,1)", true),
        ] {
            assert_eq!(
                LabelSelector::parse(text).unwrap().matches(&object),
                expected,
                "{text}"
            );
        }
        for text in ["a in x", "a inn (x)", "a b=c", "=x", "a=b c", "a>x"] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().code, 400, "{text}");
        }
    }

    #[test]
    fn field_selectors_are_per_kind() {
        let resources = builtin();
        let res = |plural: &str| resources.iter().find(|res| res.plural == plural).unwrap();
        let object = object(json!({}));
        let parse = |text: &str| FieldSelector::parse(text, res("pods")).unwrap();
        assert!(parse("metadata.name=o,status.phase=Running").matches(&object));
        assert!(!parse("metadata.name!=o").matches(&object));
        assert_eq!(parse("metadata.name=o").exact_name(), Some("o"));
        let error = FieldSelector::parse("status.phase=x", res("leases")).unwrap_err();
        assert!(
            error
                .message
                .starts_with("\"status.phase\" is not a known field selector"),
            "{error}"
        );
        assert_eq!(error.code, 400);
    }
}
