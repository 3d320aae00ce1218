use super::*;
use crate::config;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn selector(json: &Json) -> Selector {
    config::read(json.to_string().as_bytes(), convert).unwrap()
}

fn labels(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn operators_match_as_in_kubernetes() {
    let expression = |operator: &str, values: &[&str]| {
        selector(&json!({"matchExpressions": [{"key": "role", "operator": operator, "values": values}]}))
    };
    let [none, api, main, empty] = [
        labels(&[]),
        labels(&[("role", "api")]),
        labels(&[("role", "main")]),
        labels(&[("role", "")]),
    ];
    let rows = [
        (expression("In", &["api", "x"]), [false, true, false, false]),
        (expression("NotIn", &["api", "x"]), [true, false, true, true]),
        (expression("Exists", &[]), [false, true, true, true]),
        (expression("DoesNotExist", &[]), [true, false, false, false]),
        (
            selector(&json!({"matchLabels": {"role": "main"}})),
            [false, false, true, false],
        ),
        (
            selector(&json!({"matchLabels": {"role": ""}})),
            [false, false, false, true],
        ),
    ];
    for (selector, expected) in rows {
        assert_eq!(
            [&none, &api, &main, &empty].map(|labels| selector.matches(labels)),
            expected,
            "{selector}"
        );
    }
}

#[test]
fn queries_are_kubectls() {
    let selector = selector(&json!({
        "matchLabels": {"app": "etcd", "empty": ""},
        "matchExpressions": [
            {"key": "tier", "operator": "NotIn", "values": ["b", "a", "b"]},
            {"key": "example.com/x", "operator": "Exists"},
            {"key": "gone", "operator": "DoesNotExist", "values": null},
            {"key": "app", "operator": "In", "values": ["etcd"]},
        ],
    }));
    assert_eq!(
        selector.to_query(),
        "app in (etcd),empty in (),example.com/x,!gone,tier notin (a,b)"
    );
    assert_eq!(
        selector.requirements().len(),
        5,
        "a repeated requirement counts once"
    );
}

/// Evaluates a query on its own, from the grammar in the Kubernetes documentation, sharing no code with the selector.
fn query_selects(query: &str, labels: &BTreeMap<String, String>) -> bool {
    let mut terms = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (index, c) in query.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&query[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&query[start..]);
    terms.into_iter().all(|term| {
        let set = |list: &str| -> Vec<String> {
            list.trim_start_matches('(')
                .trim_end_matches(')')
                .split(',')
                .map(str::to_owned)
                .collect()
        };
        if let Some(key) = term.strip_prefix('!') {
            !labels.contains_key(key)
        } else if let Some((key, list)) = term.split_once(" notin ") {
            labels.get(key).is_none_or(|value| !set(list).contains(value))
        } else if let Some((key, list)) = term.split_once(" in ") {
            labels.get(key).is_some_and(|value| set(list).contains(value))
        } else {
            labels.contains_key(term)
        }
    })
}

fn any_selector() -> impl Strategy<Value = Json> {
    let key = prop::sample::select(vec!["a", "b", "c.d/e"]);
    let value = prop::sample::select(vec!["", "x", "y", "z-1"]);
    let values = prop::collection::vec(value.clone(), 1..4);
    let expression = (
        key.clone(),
        prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]),
        values,
    )
        .prop_map(|(key, operator, values)| match operator {
            "Exists" | "DoesNotExist" => json!({"key": key, "operator": operator}),
            _ => json!({"key": key, "operator": operator, "values": values}),
        });
    let match_labels = prop::collection::btree_map(key, value, 0..3);
    (match_labels, prop::collection::vec(expression, 1..4))
        .prop_map(|(labels, expressions)| json!({"matchLabels": labels, "matchExpressions": expressions}))
}

proptest! {
    #[test]
    fn matching_and_the_query_agree(
        selector_json in any_selector(),
        labels in prop::collection::btree_map("a|b|c\\.d/e|other", "|x|y|z-1|w", 0..4),
    ) {
        let selector = selector(&selector_json);
        prop_assert_eq!(selector.matches(&labels), query_selects(&selector.to_query(), &labels), "{}", selector);
    }

    /// An object that satisfies every requirement of the file, read naively, is selected, and no other.
    #[test]
    fn matching_is_the_conjunction_of_the_file(
        selector_json in any_selector(),
        labels in prop::collection::btree_map("a|b|c\\.d/e", "|x|y", 0..4),
    ) {
        let has = |key: &Json| labels.get(key.as_str().unwrap());
        let by_labels = selector_json["matchLabels"].as_object().unwrap().iter()
            .all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str());
        let by_expressions = selector_json["matchExpressions"].as_array().unwrap().iter().all(|e| {
            let found = has(&e["key"]);
            let listed = || e["values"].as_array().unwrap().iter().any(|v| v.as_str() == found.map(String::as_str));
            match e["operator"].as_str().unwrap() {
                "In" => found.is_some() && listed(),
                "NotIn" => found.is_none() || !listed(),
                "Exists" => found.is_some(),
                _ => found.is_none(),
            }
        });
        prop_assert_eq!(selector(&selector_json).matches(&labels), by_labels && by_expressions);
    }
}
