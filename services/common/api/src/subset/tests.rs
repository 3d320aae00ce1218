use super::*;

const KEEP: Keep = crate::keep! { "a" => { "count", "names" }, "b" };

fn object(json: &str) -> Subset {
    Subset::read(&mut serde_json::Deserializer::from_str(json), &KEEP).unwrap()
}

#[test]
fn reads_what_is_kept() {
    let read = object(r#"{"a": {"count": 2, "names": ["x"], "other": {"deep": [1, {"x": null}]}}, "c": 1}"#);
    assert_eq!(read.field("a.count"), Ok(2));
    assert_eq!(read.field("a.names"), Ok(vec!["x".to_owned()]));
    assert_eq!(read.field("b.more.of.it"), Ok(false), "absent");
    assert_eq!(read.0, serde_json::json!({"a": {"count": 2, "names": ["x"]}}));
}

#[test]
fn names_the_field_and_never_its_value() {
    let secret = "hunter2 \\\" still";
    let json = serde_json::json!({"a": {"count": secret, "names": ["a", {"password": "hunter2"}]}, "b": "x"});
    let read = object(&json.to_string());
    let error = |wrong: Result<Vec<String>, String>| wrong.unwrap_err();
    assert_eq!(
        read.field::<u32>("a.count").unwrap_err(),
        "a.count: invalid type: string …, expected u32"
    );
    assert_eq!(
        error(read.field("a.names")),
        "a.names[1]: invalid type: map, expected a string"
    );
    assert_eq!(error(read.field("b.more.of.it")), "b: must be an object");
    assert_eq!(error(object("7").field("a.names")), "must be an object");
}

#[test]
fn only_broken_syntax_is_an_error() {
    for json in ["null", "1", "true", "-1.5", "\"text\"", "[]", "[[[]]]", "{}"] {
        object(json);
    }
    assert!(Subset::read(&mut serde_json::Deserializer::from_str("{"), &KEEP).is_err());
}

#[test]
fn of_a_field_that_is_there_twice_the_last_one_counts() {
    for (json, expected) in [
        (r#"{"b": 1, "b": 2}"#, 2),
        (r#"{"b": 1, "b": null}"#, 0),
        (r#"{"b": null, "b": 2}"#, 2),
        (r#"{"a": {"count": 1}, "a": {"names": []}}"#, 0),
        (r#"{"a": {"count": 1, "count": 2}}"#, 2),
    ] {
        let read = object(json);
        let sum = read.field::<u32>("b").unwrap() + read.field::<u32>("a.count").unwrap();
        assert_eq!(sum, expected, "{json}");
    }
}

#[test]
fn scrubbing_survives_odd_quotes() {
    assert_eq!(scrub("plain"), "plain");
    assert_eq!(scrub(r#"a "b" c "d" e"#), "a … e");
    assert_eq!(scrub(r#""\\" end"#), "… end");
    assert_eq!(scrub(&"x".repeat(1000)).chars().count(), 201);
}
