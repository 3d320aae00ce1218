use super::*;

/// Any document, of which nothing is kept.
fn parse(text: &str) -> Result<(), String> {
    let read = serde_saphyr::from_str_with_options::<serde_json::Value>(text, options());
    read.map(drop).map_err(|error| fault(&error, ""))
}

/// As generators of YAML write a list of equal entries.
#[test]
fn an_anchor_may_have_many_aliases() {
    parse(&format!("- &a {{x: 1}}\n{}", "- *a\n".repeat(1_000))).unwrap();
}

#[test]
fn says_where_the_syntax_breaks() {
    for (text, expected) in [
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column 2: "),
        ("a: !secret x", "line 1, column 12: "),
        ("a: *nowhere", "line 1, column 4: reference to unknown value"),
        (
            "a: &a [*a]",
            "line 1, column 8: Recursive reference not allowed here",
        ),
        ("a: [\u{1b}", "line 1, column "),
    ] {
        let error = parse(text).unwrap_err();
        assert!(
            error.starts_with(expected) && !error.contains('\u{1b}'),
            "{error}"
        );
    }
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
    let too_large = |text: &str| {
        parse(text)
            .unwrap_err()
            .contains("YAML document too large or too complex")
    };
    assert!(too_large(&nested(33)));
    // Aliases nest without brackets.
    let mut chain = "a0: &a0 [x]\n".to_owned();
    for i in 1..60 {
        chain.push_str(&format!("a{i}: &a{i} [*a{}]\n", i - 1));
    }
    assert!(too_large(&chain));
    // A billion laughs.
    let mut bomb = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for i in 1..10 {
        let list = vec![format!("*a{}", i - 1); 9].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    assert!(too_large(&bomb));
    let wide = format!("[{}]", vec!["x"; 100_001].join(","));
    assert!(too_large(&wide));
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
