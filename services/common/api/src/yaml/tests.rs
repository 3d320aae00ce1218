use super::*;
use proptest::prelude::*;

fn tree(text: &str) -> Node {
    parse(text).unwrap().0
}

impl Node {
    /// The first value of a mapping with this key.
    fn get(&self, file: &str, key: &str) -> &Self {
        let entry = self.entries().iter().find(|(own, _)| own.text(file) == key);
        &entry.unwrap().1
    }

    fn entries(&self) -> &[(Self, Self)] {
        match &self.kind {
            NodeKind::Mapping(entries) => entries,
            _ => panic!("{self:?} is no mapping"),
        }
    }

    fn items(&self) -> &[Self] {
        match &self.kind {
            NodeKind::Sequence(items) => items,
            _ => panic!("{self:?} is no list"),
        }
    }

    fn text<'d>(&'d self, file: &'d str) -> &'d str {
        self.scalar(file).unwrap().0
    }

    /// Line and column.
    fn place(&self) -> (usize, usize) {
        (self.pos.line, self.pos.column)
    }
}

fn error(text: &str) -> (usize, usize, String) {
    let error = parse(text).unwrap_err();
    (error.line, error.column, error.message)
}

#[test]
fn keys_and_values_know_their_place() {
    let file = "# comment\na:\n  - x\n  - ü: [1, deep]\n";
    let node = tree(file);
    let (key, value) = &node.entries()[0];
    assert_eq!(key.place(), (2, 1));
    assert_eq!(value.items()[0].place(), (3, 5));
    let list = value.items()[1].get(file, "ü");
    assert_eq!(list.place(), (4, 8));
    assert_eq!(list.items()[1].place(), (4, 12));
}

#[test]
fn an_alias_is_where_it_is_used() {
    let file = "a: &a {x: 007}\nb: *a\nc:\n  <<: *a\n";
    let node = tree(file);
    for (key, place) in [("a", (1, 11)), ("b", (2, 4)), ("c", (4, 7))] {
        let value = node.get(file, key).get(file, "x");
        assert_eq!((value.text(file), value.place()), ("007", place), "{key}");
    }
}

/// As generators of YAML write a list of equal entries.
#[test]
fn an_anchor_may_have_many_aliases() {
    let node = tree(&format!("- &a {{x: 1}}\n{}", "- *a\n".repeat(1_000)));
    assert_eq!(node.items().len(), 1_001);
}

#[test]
fn empty_files_are_null() {
    for text in ["", "\n\n", "# nothing\n", "---\n", "~", "--- null\n"] {
        assert!(matches!(tree(text).kind, NodeKind::Null), "{text:?}");
    }
}

#[test]
fn reads_json_with_tabs() {
    let file = "{\n\t\"a\": {\"b\": [true, \"x\\u00e9\"]},\n\t\"c\": null\n}\n";
    let node = tree(file);
    let items = node.get(file, "a").get(file, "b").items();
    assert_eq!([items[0].text(file), items[1].text(file)], ["true", "xé"]);
    assert!(matches!(node.get(file, "c").kind, NodeKind::Null));
}

#[test]
fn scalars_keep_their_text_and_quotes() {
    for (written, text, is_plain) in [
        ("007", "007", true),
        ("'007'", "007", false),
        ("0x1F", "0x1F", true),
        ("1_000", "1_000", true),
        ("1e999", "1e999", true),
        (".inf", ".inf", true),
        ("99999999999999999999", "99999999999999999999", true),
        ("-0.50", "-0.50", true),
        ("Yes  # comment", "Yes", true),
        ("two words", "two words", true),
        ("\"a\\tb\"", "a\tb", false),
        ("'null'", "null", false),
        ("!!str null", "null", true),
        ("''", "", false),
        (">-\n  folded\n  text", "folded text", false),
        ("several\n  lines", "several lines", false),
    ] {
        let file = format!("- {written}\n");
        let node = tree(&file);
        assert_eq!(node.items()[0].scalar(&file), Some((text, is_plain)), "{written}");
    }
    for null in ["null", "~", "", "!!null ''"] {
        let node = tree(&format!("- {null}\n"));
        assert!(matches!(node.items()[0].kind, NodeKind::Null), "{null:?}");
    }
}

#[test]
fn duplicates_stay_and_merges_are_expanded() {
    let file = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nall: {<<: [*b, *m], x: 9}\none: {<<: *m}\na: 1\na: [2]\n";
    let (node, repeated) = parse(file).unwrap();
    assert_eq!(repeated.unwrap().to_string(), "6:1: a key is given twice");
    let keys = |node: &Node| -> Vec<String> {
        let shown = |(key, value): &(Node, Node)| format!("{}={}", key.text(file), value.text(file));
        node.entries().iter().map(shown).collect()
    };
    assert_eq!(keys(node.get(file, "all")), ["x=9", "y=2", "z=4"]);
    assert_eq!(keys(node.get(file, "one")), ["y=3", "z=4"]);
    let names: Vec<_> = node.entries().iter().map(|(key, _)| key.text(file)).collect();
    assert_eq!(names, ["base", "more", "all", "one", "a", "a"]);
    assert_eq!(error("a: {<<: 1}").2, "<< can merge mappings only");
    let quoted = "'<<': 1";
    assert_eq!(
        tree(quoted).entries()[0].0.text(quoted),
        "<<",
        "quoted, it is an ordinary key"
    );
}

#[test]
fn a_number_that_is_given_twice_is_known() {
    let (_, repeated) = parse("a:\n  1: x\n  1: y\n").unwrap();
    assert_eq!(repeated.unwrap().to_string(), "3:3: a key is given twice");
}

#[test]
fn says_where_the_syntax_breaks() {
    let (line, column, _) = error("a: 1\nb: [1, 2\nc: 3\n");
    assert_eq!((line, column), (3, 2));
    assert_eq!(
        error("a: 1\n---\nb: 2\n").2,
        "the file holds more than one YAML document"
    );
    assert_eq!(
        error("a: !secret x"),
        (1, 12, "the tag \"secret\" is not known".to_owned())
    );
    assert_eq!(
        error("a: *nowhere"),
        (1, 4, "the alias refers to a value that is not there".to_owned())
    );
    assert_eq!(
        error("a: &a [*a]").2,
        "the alias refers to a value that contains it"
    );
    let latin = text(b"a: 1\nb: caf\xe9\n").unwrap_err();
    assert_eq!(latin.to_string(), "2:7: the file is not UTF-8");
}

#[test]
fn size_depth_and_aliases_are_bounded() {
    let large = vec![b' '; MAX_BYTES + 1];
    let large = text(&large).unwrap_err().message;
    assert!(large.contains("the limit is 1048576"), "{large}");
    for deep in [
        "[".repeat(1000),
        "{a: ".repeat(1000),
        "- ".repeat(1000),
        "a:\n".repeat(3),
    ] {
        let _ = parse(&deep);
    }
    let nested = |levels| format!("{}x{}", "[".repeat(levels), "]".repeat(levels));
    assert!(parse(&nested(31)).is_ok());
    assert_eq!(error(&nested(33)).2, "the file is nested deeper than 32 levels");
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

/// Whatever fits the limits is read in time that grows with its size: .config/nextest.toml bounds it.
#[test]
fn the_largest_files_are_read_in_time() {
    let keys: String = (0..33_000).map(|i| format!("k{i}: 1\n")).collect();
    let files = [
        keys.clone(),
        "k: 1\n".repeat(33_000),
        "1: 1\n".repeat(33_000),
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
        let _ = crate::prober::parse(file.as_bytes(), crate::config::UnknownFields::Refused);
        let _ = crate::kubeconfig::parse(file.as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_yaml_like_text_is_a_tree_or_an_error(text in "[-a:{}\\[\\], \n&*!<'\"|>#?%@~.\t]{0,120}") {
        if let Err(error) = parse(&text) {
            prop_assert!(error.line <= text.matches('\n').count() + 2);
        }
    }
}
