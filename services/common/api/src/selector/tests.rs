use super::*;
use crate::config::{self, ConfigErrors, UnknownFields};
use std::collections::BTreeMap;

fn read(yaml: &str) -> Result<Selector, ConfigErrors> {
    let parsed = config::read(yaml.as_bytes(), UnknownFields::Refused, validate);
    parsed.map(|parsed| parsed.config)
}

/// A selector of one expression.
fn expression(text: &str) -> String {
    format!("matchExpressions: [{{key: {text}}}]")
}

/// The rows of Kubernetes' own tests (`TestLabelSelectorAsSelector`, `TestSetMatches` of k8s.io/apimachinery), and one
/// for each case in which a label is missing: a difference here deletes the wrong pod.
#[test]
fn selectors_select_what_the_api_server_selects() {
    let both = "matchLabels: {foo: bar}\nmatchExpressions: [{key: baz, operator: In, values: [qux, norf]}]";
    let contrary = "matchLabels: {foo: bar}\nmatchExpressions: [{key: foo, operator: NotIn, values: [bar]}]";
    let nothing = "matchExpressions: [{key: foo, operator: Exists}, {key: foo, operator: DoesNotExist}]";
    let rows = [
        ("matchLabels: {foo: bar}", "foo=bar", true),
        ("matchLabels: {foo: bar}", "foo=bar,baz=blah", true),
        ("matchLabels: {foo: bar}", "foo=Bar", false),
        ("matchLabels: {foo: bar}", "Foo=bar", false),
        ("matchLabels: {foo: bar}", "", false),
        ("matchLabels: {foo: bar, baz: blah}", "foo=bar", false),
        // An empty value is a value.
        ("matchLabels: {foo: ''}", "foo=", true),
        ("matchLabels: {foo: ''}", "", false),
        (&expression("foo, operator: In, values: ['', x]"), "foo=", true),
        (&expression("foo, operator: In, values: ['', x]"), "bar=x", false),
        // What is absent is in no set.
        (&expression("foo, operator: NotIn, values: [x]"), "", true),
        (&expression("foo, operator: NotIn, values: [x]"), "bar=x", true),
        (&expression("foo, operator: NotIn, values: ['']"), "foo=", false),
        (&expression("foo, operator: NotIn, values: ['']"), "", true),
        (&expression("foo, operator: Exists, values: []"), "foo=", true),
        (
            &expression("foo, operator: Exists, values: null"),
            "bar=foo",
            false,
        ),
        (&expression("foo, operator: DoesNotExist"), "", true),
        (&expression("foo, operator: DoesNotExist"), "foo=", false),
        // All of a selector must hold, also two expressions on one label.
        (both, "foo=bar,baz=norf", true),
        (both, "foo=bar", false),
        (contrary, "foo=bar", false),
        (nothing, "", false),
    ];
    for (yaml, labels, expected) in rows {
        let selector = read(yaml).unwrap();
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        let labels: BTreeMap<_, _> = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        assert_eq!(selector.matches(&labels), expected, "{yaml} on {labels:?}");
        // What a watch with the query sees is the same.
        let selected = query_selects(&selector.to_string(), &labels);
        assert_eq!(selected, expected, "{selector} on {labels:?}");
    }
}

/// The API server's empty selector selects everything, so none is read: not from an empty file, nor from empty fields.
#[test]
fn an_empty_selector_is_refused() {
    for empty in [
        "{}",
        "matchLabels: {}",
        "matchLabels: null\nmatchExpressions: null",
        "matchExpressions: []",
    ] {
        let errors = read(empty).unwrap_err().to_string();
        assert!(errors.contains("selects every pod"), "{empty}: {errors}");
    }
}

/// Each would be a selector of something else, or none, to the API server.
#[test]
fn what_the_api_server_would_refuse_is_refused() {
    for wrong in [
        "matchLabels: {foo: null}",
        "matchLabels: {foo: a b}",
        &format!("matchLabels: {{foo: {}}}", "x".repeat(64)),
        "matchLabels: {'': x}",
        "matchLabels: {a/b/c: x}",
        "matchLabels: {Upper.Prefix/b: x}",
        &expression("foo, operator: In, values: []"),
        &expression("foo, operator: NotIn, values: null"),
        &expression("foo, operator: Exists, values: [x]"),
        &expression("foo, operator: DoesNotExist, values: ['']"),
        &expression("foo, operator: in, values: [x]"),
        &expression("foo, operator: Gt, values: ['1']"),
        &expression("foo, operator: In, values: ['x,y']"),
        &expression("foo bar, operator: Exists"),
        &expression("'', operator: Exists"),
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

/// A value that is wrong is there nevertheless.
#[test]
fn a_wrong_value_is_one_fault() {
    let shown = read(&expression("foo, operator: In, values: [a b]"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        shown,
        "<config>:1:54: matchExpressions[0].values[0]: \"a b\" is not the value of a label: letters, digits, -, _ \
         and ., at most 63"
    );
}

#[test]
fn queries_are_kubectls() {
    let selector = "
matchLabels: {app: etcd, empty: ''}
matchExpressions:
- {key: tier, operator: NotIn, values: [b, a, b]}
- {key: example.com/x, operator: Exists}
- {key: gone, operator: DoesNotExist, values: null}
- {key: app, operator: In, values: [etcd]}
";
    let selector = read(selector).unwrap();
    assert_eq!(
        selector.to_string(),
        "app in (etcd),empty in (),tier notin (a,b),example.com/x,!gone"
    );
    let count = selector.into_iter().count();
    assert_eq!(count, 5, "a repeated requirement counts once");
}

/// Evaluates a query on its own, from the grammar in the Kubernetes documentation, sharing no code with the selector.
fn query_selects(query: &str, labels: &BTreeMap<String, String>) -> bool {
    let (mut terms, mut depth) = (vec![String::new()], 0);
    for c in query.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        match c {
            ',' if depth == 0 => terms.push(String::new()),
            c => terms.last_mut().unwrap().push(c),
        }
    }
    terms.iter().all(|term| {
        let value = |key: &str| labels.get(key).map(String::as_str);
        let is_in =
            |list: &str, value: &str| list.trim_matches(['(', ')']).split(',').any(|one| one == value);
        if let Some(key) = term.strip_prefix('!') {
            value(key).is_none()
        } else if let Some((key, list)) = term.split_once(" notin ") {
            value(key).is_none_or(|value| !is_in(list, value))
        } else if let Some((key, list)) = term.split_once(" in ") {
            value(key).is_some_and(|value| is_in(list, value))
        } else {
            value(term).is_some()
        }
    })
}
