//! Kubeconfigs that must be refused, and those with errors.

use super::*;

/// The places of the user and the cluster that are in use, as pointers and as errors name them.
const USER: (&str, &str) = ("/users/0/user", "users[0].user");
const CLUSTER: (&str, &str) = ("/clusters/1/cluster", "clusters[1].cluster");

#[test]
fn what_would_leave_the_process_is_refused_by_name() {
    let of_user = json!({
        "exec": {"command": "hunter2"}, "auth-provider": {"name": "hunter2"}, "tokenFile": "/hunter2",
        "client-certificate": "/hunter2", "client-key": "/hunter2", "username": "hunter2", "password": "hunter2",
        "as": "hunter2", "as-uid": "hunter2", "as-groups": ["hunter2"], "as-user-extra": {"a": ["hunter2"]},
    });
    let of_cluster = json!({
        "certificate-authority": "/hunter2", "proxy-url": "socks5://hunter2", "insecure-skip-tls-verify": true,
    });
    for ((pointer, path), fields) in [(USER, of_user), (CLUSTER, of_cluster)] {
        for (field, value) in fields.as_object().unwrap() {
            let error = error(&with(&format!("{pointer}/{field}"), value.clone()));
            let begin = format!("{path}.{field}: is not supported: ");
            let instead = error.strip_prefix(&begin).unwrap_or_else(|| panic!("{error}"));
            assert!(instead.contains("; "), "what it is, and what to do: {instead}");
        }
    }
    // Unset, empty or switched off they do no harm.
    for (pointer, value) in [
        ("/users/0/user/exec", json!(null)),
        ("/users/0/user/auth-provider", json!({})),
        ("/users/0/user/tokenFile", json!("")),
        ("/users/0/user/as-groups", json!([])),
        ("/users/0/user/as-user-extra", json!({})),
        ("/clusters/1/cluster/insecure-skip-tls-verify", json!(false)),
    ] {
        assert!(read(&with(pointer, value)).is_ok(), "{pointer}");
    }
}

#[test]
fn a_context_must_lead_to_one_cluster_and_user_of_the_right_types() {
    const NO_CONTEXT: &str = "contexts: no entry has the name that current-context refers to";
    for (pointer, value, expected) in [
        ("/current-context", json!("hunter2"), NO_CONTEXT),
        ("/contexts", json!([]), NO_CONTEXT),
        (
            "/contexts/1/context/cluster",
            json!("x"),
            "clusters: no entry has the name that the context refers to",
        ),
        (
            "/contexts/0/name",
            json!("b"),
            "contexts[1].name: is the same as that of an entry before",
        ),
        (
            "/current-context",
            json!(["b"]),
            "current-context: has a value of the wrong type",
        ),
        ("/contexts", json!("c"), "contexts: has a value of the wrong type"),
        ("/users", json!({"u": 1}), "users: has a value of the wrong type"),
        (
            "/contexts/1/context",
            json!("hunter2"),
            "contexts[1].context: must be a mapping",
        ),
        (
            "/clusters/1/cluster",
            json!(null),
            "clusters[1].cluster: must be a mapping",
        ),
        (
            "/contexts/1/context/cluster",
            json!(null),
            "contexts[1].context: lacks the field cluster",
        ),
        (
            "/contexts/1/context/cluster",
            json!(["hunter2"]),
            "contexts[1].context.cluster: has a value of the wrong type",
        ),
        (
            "/users/0/user/token",
            json!({"hunter2": 1}),
            "users[0].user.token: has a value of the wrong type",
        ),
    ] {
        assert_eq!(error(&with(pointer, value)), expected, "{pointer}");
    }
}

#[test]
fn malformed_fields_are_refused_by_name() {
    let refused = |(pointer, path): (&str, &str), field: &str, value: &str, reason: &str| {
        let expected = format!("{path}.{field}: {reason}");
        assert_eq!(
            error(&with(&format!("{pointer}/{field}"), json!(value))),
            expected
        );
    };
    let port = "must have a port between 1 and 65535, or none";
    let form = "must be an address such as https://host:443, with https:// before the host";
    let zone = "must not have the zone of an IPv6 address; use an address or a name without one";
    let clear = "must be https: credentials are not sent in the clear";
    for (server, reason) in [
        ("", "is required"),
        ("http://hunter2", clear),
        ("hunter2:443", form),
        ("https://a b", "is not an address such as https://host:443"),
        (
            "https://bücher.example",
            "must be ASCII; write an internationalized name as xn--…",
        ),
        (
            "https://u:hunter2@host",
            "must not hold credentials; put them into the user",
        ),
        ("https://h:hunter2", port),
        ("https://h:65536", port),
        ("https://[fe80::1%25eth0]:443", zone),
        ("https://h/?x=1", "must not have a query"),
    ] {
        refused(CLUSTER, "server", server, reason);
    }
    let name = "must be a DNS name or an IP address";
    refused(CLUSTER, "tls-server-name", "not a name", name);
    let header = "has characters that no HTTP header can carry";
    refused(USER, "token", "hunter2 with space", header);
    let bad_pem = "-----BEGIN CERTIFICATE-----\nhunter2!\n-----END CERTIFICATE-----\n";
    let authority = "certificate-authority-data";
    refused(CLUSTER, authority, "hunter2!", "is not base64");
    for text in ["hunter2", bad_pem] {
        refused(CLUSTER, authority, &encoded(text), "holds no certificate in PEM");
    }
    let (chain, key) = ("client-certificate-data", "client-key-data");
    let mut no_key = with("/users/0/user/client-key-data", json!(encoded(&PKI.cert)));
    no_key["users"][0]["user"][chain] = json!(encoded(&PKI.cert));
    let expected = "users[0].user.client-key-data: holds no private key in PEM";
    assert_eq!(error(&no_key), expected);
    for (given, value, missing) in [(chain, &PKI.cert, key), (key, &PKI.key, chain)] {
        let expected = format!("users[0].user.{missing}: is required beside {given}");
        let config = with(&format!("/users/0/user/{given}"), json!(encoded(value)));
        assert_eq!(error(&config), expected);
    }
}

#[test]
fn documents_that_are_no_kubeconfig_are_refused() {
    for (document, expected) in [
        (&b""[..], "kubeconfig: is empty"),
        (b"null", "kubeconfig: is empty"),
        (b"---\n---\n{}\n", "kubeconfig: is empty"),
        (b"hunter2", "kubeconfig: must be a mapping"),
        (b"- hunter2", "kubeconfig: must be a mapping"),
        (
            b"a: [hunter2\nb: 1",
            "kubeconfig: is not valid YAML at line 2, column 2",
        ),
        (b"a: \xff", "kubeconfig: is not UTF-8"),
        (b"\xff\xfea\0:\0 ", "kubeconfig: is not UTF-8"),
        (
            b"contexts:\n- context:\n    user: u\n",
            "contexts[0].context: lacks the field cluster",
        ),
        (
            b"users: !hunter2 []\n",
            "kubeconfig: is not valid YAML at line 1, column 17",
        ),
        (b"apiVersion: v1", "contexts: must hold a context"),
    ] {
        let error = parse(document).unwrap_err().to_string();
        assert_eq!(error, format!("the kubeconfig cannot be used: {expected}"));
    }
}

/// A kubeconfig larger than a Secret can be, or deeper than a stack, takes neither memory nor time. The other limits
/// are those of every file (`yaml`).
#[test]
fn size_and_depth_are_bounded() {
    let refused = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
    let prefix = "the kubeconfig cannot be used: kubeconfig: ";
    let large = refused(&" ".repeat((1 << 20) + 1));
    assert_eq!(large, format!("{prefix}has 1048577 bytes; the limit is 1048576"));
    for text in [
        format!("a: {}x{}", "[".repeat(33), "]".repeat(33)),
        format!("a: [{}]", vec!["x"; 100_001].join(",")),
    ] {
        let error = refused(&text);
        let expected = format!("{prefix}is too large or too deep at line ");
        assert!(error.starts_with(&expected), "{error}");
    }
    for deep in ["[", "- ", "{a: ", "? ", "users: [{user: "] {
        refused(&deep.repeat(60_000));
    }
}
