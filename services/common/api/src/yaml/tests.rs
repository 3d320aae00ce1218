use super::*;
use proptest::prelude::*;

fn tree(text: &str) -> Node {
    parse(text.as_bytes()).unwrap().unwrap()
}

impl Node {
    /// The first entry of a mapping with this key, unless its value is null.
    fn get(&self, key: &str) -> Option<&Self> {
        let NodeKind::Mapping(entries) = &self.kind else {
            return None;
        };
        let entry = entries.iter().find(|entry| entry.key == key)?;
        Some(&entry.value).filter(|value| !value.is_null())
    }
}

fn error(text: &str) -> (usize, usize, String) {
    let error = parse(text.as_bytes()).unwrap_err();
    (error.line, error.column, error.message)
}

fn texts(node: &Node) -> Vec<&str> {
    let NodeKind::Sequence(items) = &node.kind else {
        panic!("a list")
    };
    items
        .iter()
        .map(|item| item.as_text().unwrap_or("<none>"))
        .collect()
}

#[test]
fn keys_and_values_know_their_place() {
    let node = tree("# comment\na:\n  - x\n  - ü: [1, deep]\n");
    let NodeKind::Mapping(entries) = &node.kind else {
        panic!("a mapping")
    };
    assert_eq!(entries[0].key_pos, Pos { line: 2, column: 1 });
    let NodeKind::Sequence(items) = &entries[0].value.kind else {
        panic!("a list")
    };
    assert_eq!(items[0].pos, Pos { line: 3, column: 5 });
    let list = items[1].get("ü").unwrap();
    assert_eq!(list.pos, Pos { line: 4, column: 8 });
    let NodeKind::Sequence(inner) = &list.kind else {
        panic!("a list")
    };
    assert_eq!(inner[1].pos, Pos { line: 4, column: 12 });
}

#[test]
fn empty_files_have_no_tree() {
    for text in ["", "\n\n", "# nothing\n", "\u{feff}"] {
        assert!(parse(text.as_bytes()).unwrap().is_none(), "{text:?}");
    }
    assert!(tree("---\n").is_null());
    assert!(tree("~").is_null());
}

#[test]
fn reads_json_with_tabs() {
    let node = tree("{\n\t\"a\": {\"b\": [true, \"x\\u00e9\"]},\n\t\"c\": null\n}\n");
    assert_eq!(texts(node.get("a").unwrap().get("b").unwrap()), ["true", "xé"]);
    assert!(node.get("c").is_none());
}

#[test]
fn scalars_keep_their_text_and_quotes() {
    let node = tree(
        "- 007\n- '007'\n- null\n- 'null'\n- ~\n- ''\n- !!str null\n- !!str 5\n- >-\n  folded\n  text\n- Yes\n",
    );
    assert_eq!(
        texts(&node),
        [
            "007",
            "007",
            "<none>",
            "null",
            "<none>",
            "",
            "null",
            "5",
            "folded text",
            "Yes"
        ]
    );
    let NodeKind::Sequence(items) = &node.kind else {
        panic!("a list")
    };
    let plain: Vec<bool> = items
        .iter()
        .map(|item| matches!(&item.kind, NodeKind::Scalar(Scalar { plain: true, .. })))
        .collect();
    assert_eq!(
        plain,
        [true, false, true, false, true, false, false, false, false, true]
    );
    assert_eq!(items[9].as_bool(), Some(true));
    assert_eq!(items[1].as_bool(), None);
}

#[test]
fn duplicates_stay_and_merges_are_expanded() {
    let node = tree(
        "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nall: {<<: [*b, *m], x: 9}\none: {<<: *m}\na: 1\na: 2\n",
    );
    let keys = |node: &Node| -> Vec<String> {
        let NodeKind::Mapping(entries) = &node.kind else {
            panic!("a mapping")
        };
        entries
            .iter()
            .map(|e| format!("{}={}", e.key, e.value.as_text().unwrap_or("?")))
            .collect()
    };
    assert_eq!(keys(node.get("all").unwrap()), ["x=9", "y=2", "z=4"]);
    assert_eq!(keys(node.get("one").unwrap()), ["y=3", "z=4"]);
    assert!(keys(&node).ends_with(&["a=1".to_owned(), "a=2".to_owned()]));
    assert_eq!(error("a: {<<: 1}").2, "<< can merge mappings only");
    assert_eq!(error("a: {<<: [1]}").2, "<< can merge mappings only");
    assert_eq!(keys(&tree("'<<': 1")), ["<<=1"], "quoted, it is an ordinary key");
}

#[test]
fn says_where_the_syntax_breaks() {
    let (line, column, _) = error("a: 1\nb: [1, 2\nc: 3\n");
    assert_eq!((line, column), (3, 2));
    assert_eq!(
        error("a: 1\n---\nb: 2\n").2,
        "the file holds more than one YAML document"
    );
    assert_eq!(error("? [a]\n: 1\n").2, "a key must be a text, not a collection");
    assert_eq!(error("a: !secret x").2, "the tag \"secret\" is not known");
    assert_eq!(error("a: *nowhere").0, 1);
    assert_eq!(
        error("a: &a [*a]").2,
        "the alias refers to a value that contains it"
    );
    let latin = parse(b"a: 1\nb: caf\xe9\n").unwrap_err();
    assert_eq!(
        (latin.line, latin.column, latin.message.as_str()),
        (2, 7, "the file is not UTF-8")
    );
}

#[test]
fn size_depth_and_aliases_are_bounded() {
    let large = vec![b' '; MAX_BYTES + 1];
    assert!(
        parse(&large)
            .unwrap_err()
            .message
            .contains("the limit is 1048576")
    );
    for deep in [
        "[".repeat(1000),
        "{a: ".repeat(1000),
        "- ".repeat(1000),
        "a:\n".repeat(3),
    ] {
        let _ = parse(deep.as_bytes());
    }
    let allowed = format!("{}x{}", "[".repeat(31), "]".repeat(31));
    assert!(parse(allowed.as_bytes()).is_ok());
    let deep = format!("{}x{}", "[".repeat(33), "]".repeat(33));
    assert!(parse(deep.as_bytes()).is_err());
    // Aliases nest without brackets.
    let mut chain = "a0: &a0 [x]\n".to_owned();
    for i in 1..60 {
        chain.push_str(&format!("a{i}: &a{i} [*a{}]\n", i - 1));
    }
    assert!(error(&chain).2.contains("nested deeper than 32 levels"));
    // A billion laughs.
    let mut bomb = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for i in 1..10 {
        let list = vec![format!("*a{}", i - 1); 9].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    assert!(error(&bomb).2.contains("more than 100000 values"));
    let wide = format!("[{}]", vec!["x"; 100_001].join(","));
    assert!(error(&wide).2.contains("more than 100000 values"));
}

/// Whatever fits the limits is read in time that grows with its size. .config/nextest.toml gives this test 20 s.
#[test]
fn the_largest_files_are_read_in_time() {
    let keys: String = (0..33_000).map(|i| format!("k{i}: 1\n")).collect();
    let files = [
        keys.clone(),
        format!("a: &a\n  {}\nb:\n  <<: *a\n", keys.replace('\n', "\n  ")),
        format!("a: {}\n", "x".repeat(1_000_000)),
        format!("a: \"{}\"\n", "\\n".repeat(500_000)),
        format!("a:\n{}", "  x\n".repeat(250_000)),
        format!("a: |\n{}", "  x\n".repeat(250_000)),
        "#\n".repeat(500_000),
        "\n".repeat(1_000_000),
        " ".repeat(1_000_000),
        "- ".repeat(500_000),
        "a: ".repeat(300_000),
        "[".repeat(1_000_000),
        "'".repeat(1_000_000),
        "&a ".repeat(300_000),
        "? ".repeat(500_000),
        "%".repeat(1_000_000),
        format!("users:\n{}", "- {name: u, user: {token: t}}\n".repeat(16_000)),
        format!(
            "users:\n- name: u\n  user: &a\n    {0}\n- user:\n    <<: *a\n",
            keys.replace('\n', "\n    ")
        ),
    ];
    for file in files {
        let _ = parse(file.as_bytes());
        let _ = crate::kubeconfig::parse(file.as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_are_a_tree_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn any_yaml_like_text_is_a_tree_or_an_error(text in "[-a:{}\\[\\], \n&*!<'\"|>#?%@~.\t]{0,120}") {
        if let Err(error) = parse(text.as_bytes()) {
            prop_assert!(error.line <= text.matches('\n').count() + 2);
        }
    }
}
