use super::*;

/// Any document, of which nothing is kept.
fn parse(text: &str) -> Result<(), ConfigError> {
    let read = serde_saphyr::from_str_with_options::<serde_json::Value>(text, options());
    read.map(drop).map_err(|error| fault(&error, ""))
}

fn error(text: &str) -> (u64, u64, String) {
    let error = parse(text).unwrap_err();
    (error.line, error.column, error.message)
}

/// As generators of YAML write a list of equal entries.
#[test]
fn an_anchor_may_have_many_aliases() {
    parse(&format!("- &a {{x: 1}}\n{}", "- *a\n".repeat(1_000))).unwrap();
}

#[test]
fn says_where_the_syntax_breaks() {
    let (line, column, _) = error("a: 1\nb: [1, 2\nc: 3\n");
    assert_eq!((line, column), (3, 2));
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
fn depth_aliases_and_values_are_bounded() {
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
