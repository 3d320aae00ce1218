//! Label and field selectors in their query-string form.

use super::object::Object;
use crate::status::ApiError;

/// A parsed label selector; empty matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Requirement {
    fn matches(&self, object: &Object) -> bool {
        let label = |key: &str| object.label(key);
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
        }
    }
}

impl LabelSelector {
    /// Parses the grammar of `labelSelector=`: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
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
        return Some(Requirement::Absent(word(key)?));
    }
    if let Some(open) = part.find('(') {
        let values = part.get(open + 1..)?.strip_suffix(')')?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let (key, operator) = part.get(..open)?.trim().rsplit_once(char::is_whitespace)?;
        return match operator {
            "in" => Some(Requirement::In(word(key)?, values)),
            "notin" => Some(Requirement::NotIn(word(key)?, values)),
            _ => None,
        };
    }
    for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = part.split_once(operator) {
            let (key, values) = (word(key)?, vec![word(value)?]);
            return Some(if negated {
                Requirement::NotIn(key, values)
            } else {
                Requirement::In(key, values)
            });
        }
    }
    Some(Requirement::Exists(word(part)?))
}

/// A key or a value.
fn word(text: &str) -> Option<String> {
    let text = text.trim();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    text.chars().all(is_valid).then(|| text.to_owned())
}

/// The name that `fieldSelector=` asks for, if any: nothing here selects by another field.
///
/// # Errors
/// 400 for another field or operator.
pub(crate) fn selected_name(text: &str) -> Result<Option<String>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.split_once('=') {
        Some(("metadata.name", name)) if !name.contains(['=', ',']) => Ok(Some(name.to_owned())),
        Some((field, _)) if field != "metadata.name" => Err(ApiError::bad_request(format!(
            "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ))),
        _ => Err(ApiError::bad_request(format!(
            "invalid selector: '{text}'; can't understand '{text}'"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::object::StoreKey;
    use serde_json::{Value, json};

    fn object(labels: Value) -> Object {
        let value = json!({ "metadata": { "name": "o", "namespace": "n", "labels": labels } });
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
        for text in ["a in x", "a inn (x)", "a b=c", "a=b c", "a>1"] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().code, 400, "{text}");
        }
    }
}
