use super::*;

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Inner {
    count: u32,
    names: Vec<String>,
}

impl Subset for Inner {
    const KEEP: Keep = crate::keep! { "count", "names" };
}

fn read(json: &str) -> Lenient<Inner> {
    serde_json::from_str(json).unwrap()
}

#[test]
fn reads_what_is_well_formed() {
    let expected = Inner {
        count: 2,
        names: vec!["a".to_owned()],
    };
    assert_eq!(
        read(r#"{"count": 2, "names": ["a"], "other": {"deep": [1, {"x": null}]}}"#),
        Lenient::Ok(expected)
    );
}

#[test]
fn names_the_field_and_never_its_value() {
    let secret = "hunter2 \\\" still";
    let json = format!(
        r#"{{"count": "{}", "names": []}}"#,
        secret.replace('\\', "\\\\").replace('"', "\\\"")
    );
    let reason = read(&json).as_result().unwrap_err().to_owned();
    assert_eq!(reason, "count: invalid type: string …, expected u32");
    let nested = read(r#"{"count": 1, "names": ["a", {"password": "hunter2"}]}"#);
    assert_eq!(
        nested.as_result(),
        Err("names[1]: invalid type: map, expected a string")
    );
}

#[test]
fn anything_else_is_malformed_not_an_error() {
    for json in [
        "null",
        "1",
        "true",
        "-1.5",
        "\"text\"",
        "[]",
        "[[[]]]",
        "{}",
        r#"{"count": null}"#,
    ] {
        assert!(read(json).ok().is_none(), "{json}");
    }
    assert!(
        serde_json::from_str::<Lenient<Inner>>("{").is_err(),
        "broken syntax is the document's own error"
    );
}

#[test]
fn works_where_serde_buffers() {
    // Adjacently tagged, as kube's WatchEvent is: with the tag last, serde replays buffered content.
    #[derive(Deserialize)]
    #[serde(tag = "type", content = "object")]
    enum Event {
        Added(Lenient<Inner>),
    }
    let Event::Added(item) =
        serde_json::from_str(r#"{"object": {"names": [], "more": [1], "count": 7}, "type": "Added"}"#)
            .unwrap();
    assert_eq!(
        item,
        Lenient::Ok(Inner {
            count: 7,
            names: Vec::new()
        })
    );
}

#[test]
fn scrubbing_survives_odd_quotes() {
    assert_eq!(scrub("plain"), "plain");
    assert_eq!(scrub(r#"a "b" c "d"#), "a … c …");
    assert_eq!(scrub(r#""\\" end"#), "… end");
    assert_eq!(scrub(&"x".repeat(1000)).chars().count(), 201);
}
