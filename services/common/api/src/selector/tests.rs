use super::*;
use crate::config::{self, ConfigErrors, UnknownFields};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

fn read(json: &Json) -> Result<Selector, ConfigErrors> {
    let parsed = config::read(json.to_string().as_bytes(), UnknownFields::Refused, validate);
    parsed.map(|parsed| parsed.config)
}

fn selector(json: &Json) -> Selector {
    read(json).unwrap()
}

/// A selector of one expression.
fn expression(key: &str, operator: &str, values: Json) -> Json {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

fn labels(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// The rows of Kubernetes' own tests (`TestLabelSelectorAsSelector`, `TestSetMatches` of k8s.io/apimachinery), and one
/// for each case in which a label is missing: a difference here deletes the wrong pod.
#[test]
fn selectors_select_what_the_api_server_selects() {
    type Labels = &'static [(&'static str, &'static str)];
    let rows: &[(Json, Labels, bool)] = &[
        (json!({"matchLabels": {"foo": "bar"}}), &[("foo", "bar")], true),
        (
            json!({"matchLabels": {"foo": "bar"}}),
            &[("foo", "bar"), ("baz", "blah")],
            true,
        ),
        (json!({"matchLabels": {"foo": "bar"}}), &[("foo", "Bar")], false),
        (json!({"matchLabels": {"foo": "bar"}}), &[("Foo", "bar")], false),
        (json!({"matchLabels": {"foo": "bar"}}), &[], false),
        (
            json!({"matchLabels": {"foo": "bar", "baz": "blah"}}),
            &[("foo", "bar")],
            false,
        ),
        // An empty value is a value.
        (json!({"matchLabels": {"foo": ""}}), &[("foo", "")], true),
        (json!({"matchLabels": {"foo": ""}}), &[], false),
        (expression("foo", "In", json!(["", "x"])), &[("foo", "")], true),
        (expression("foo", "In", json!(["", "x"])), &[("bar", "x")], false),
        // What is absent is in no set.
        (expression("foo", "NotIn", json!(["x"])), &[], true),
        (expression("foo", "NotIn", json!(["x"])), &[("bar", "x")], true),
        (expression("foo", "NotIn", json!([""])), &[("foo", "")], false),
        (expression("foo", "NotIn", json!([""])), &[], true),
        (expression("foo", "Exists", json!([])), &[("foo", "")], true),
        (expression("foo", "Exists", json!(null)), &[("bar", "foo")], false),
        (expression("foo", "DoesNotExist", json!(null)), &[], true),
        (
            expression("foo", "DoesNotExist", json!(null)),
            &[("foo", "")],
            false,
        ),
        // All of a selector must hold, also two expressions on one label.
        (
            json!({"matchLabels": {"foo": "bar"}, "matchExpressions": [
                {"key": "baz", "operator": "In", "values": ["qux", "norf"]},
            ]}),
            &[("foo", "bar"), ("baz", "norf")],
            true,
        ),
        (
            json!({"matchLabels": {"foo": "bar"}, "matchExpressions": [
                {"key": "baz", "operator": "In", "values": ["qux", "norf"]},
            ]}),
            &[("foo", "bar")],
            false,
        ),
        (
            json!({"matchLabels": {"foo": "bar"}, "matchExpressions": [
                {"key": "foo", "operator": "NotIn", "values": ["bar"]},
            ]}),
            &[("foo", "bar")],
            false,
        ),
        (
            json!({"matchExpressions": [
                {"key": "foo", "operator": "Exists"}, {"key": "foo", "operator": "DoesNotExist"},
            ]}),
            &[],
            false,
        ),
    ];
    for (json, entries, expected) in rows {
        let (selector, labels) = (selector(json), labels(entries));
        assert_eq!(selector.matches(&labels), *expected, "{json} on {labels:?}");
        // What a watch with the query sees is the same.
        assert_eq!(
            query_selects(&selector.to_string(), &labels),
            *expected,
            "{selector} on {labels:?}"
        );
    }
}

/// The API server's empty selector selects everything, so none is read: not from an empty file, nor from empty fields.
#[test]
fn an_empty_selector_is_refused() {
    for empty in [
        json!({}),
        json!({"matchLabels": {}}),
        json!({"matchLabels": null, "matchExpressions": null}),
        json!({"matchExpressions": []}),
    ] {
        let errors = read(&empty).unwrap_err();
        assert!(
            errors.to_string().contains("selects every pod"),
            "{empty}: {errors}"
        );
    }
}

/// Each would be a selector of something else, or none, to the API server.
#[test]
fn what_the_api_server_would_refuse_is_refused() {
    for wrong in [
        json!({"matchLabels": {"foo": null}}),
        json!({"matchLabels": {"foo": "a b"}}),
        json!({"matchLabels": {"foo": "x".repeat(64)}}),
        json!({"matchLabels": {"": "x"}}),
        json!({"matchLabels": {"a/b/c": "x"}}),
        json!({"matchLabels": {"Upper.Prefix/b": "x"}}),
        expression("foo", "In", json!([])),
        expression("foo", "NotIn", json!(null)),
        expression("foo", "Exists", json!(["x"])),
        expression("foo", "DoesNotExist", json!([""])),
        expression("foo", "in", json!(["x"])),
        expression("foo", "Gt", json!(["1"])),
        expression("foo", "In", json!(["x,y"])),
        expression("foo bar", "Exists", json!([])),
    ] {
        assert!(read(&wrong).is_err(), "{wrong}");
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
        selector.to_string(),
        "app in (etcd),empty in (),tier notin (a,b),example.com/x,!gone"
    );
    assert_eq!(
        selector.into_iter().count(),
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
    /// An object that satisfies every requirement of the file, read naively, is selected, and no other; and the query
    /// selects the same.
    #[test]
    fn matching_is_the_conjunction_of_the_file(
        selector_json in any_selector(),
        labels in prop::collection::btree_map("a|b|c\\.d/e|other", "|x|y|z-1|w", 0..4),
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
        let selector = selector(&selector_json);
        prop_assert_eq!(selector.matches(&labels), by_labels && by_expressions);
        prop_assert_eq!(query_selects(&selector.to_string(), &labels), by_labels && by_expressions, "{}", selector);
    }
}
