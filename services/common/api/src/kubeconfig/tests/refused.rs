//! Kubeconfigs that must be refused, and those with errors.

use super::*;

/// The places of the user and the cluster that are in use, as pointers and as errors name them.
const USER: (&str, &str) = ("/users/0/user", "users[0].user");
const CLUSTER: (&str, &str) = ("/clusters/1/cluster", "clusters[1].cluster");

#[test]
fn what_would_leave_the_process_is_refused_by_name() {
    for ((pointer, path), fields, reason) in [
        (
            USER,
            json!({"exec": {"command": "hunter2"}}),
            "programs are not run; use token or client-certificate-data",
        ),
        (
            USER,
            json!({"auth-provider": {"name": "hunter2"}}),
            "auth providers are not used; use token or client-certificate-data",
        ),
        (
            USER,
            json!({"tokenFile": "/hunter2"}),
            "files are not read; use token",
        ),
        (
            USER,
            json!({"client-certificate": "/hunter2"}),
            "files are not read; use client-certificate-data",
        ),
        (
            USER,
            json!({"client-key": "/hunter2"}),
            "files are not read; use client-key-data",
        ),
        (
            USER,
            json!({"username": "hunter2", "password": "hunter2"}),
            "basic authentication is not used; use token or client-certificate-data",
        ),
        (
            USER,
            json!({
                "as": "hunter2", "as-uid": "hunter2", "as-groups": ["hunter2"], "as-user-extra": {"a": ["hunter2"]},
            }),
            "impersonation is not used; give the user itself the permissions",
        ),
        (
            CLUSTER,
            json!({"certificate-authority": "/hunter2"}),
            "files are not read; put the PEM into certificate-authority-data",
        ),
        (
            CLUSTER,
            json!({"proxy-url": "socks5://hunter2"}),
            "proxies are not used; name the address of the kube-apiserver itself",
        ),
        (
            CLUSTER,
            json!({"insecure-skip-tls-verify": true}),
            "the server must be verified; set certificate-authority-data and, if need be, tls-server-name",
        ),
    ] {
        for (field, value) in fields.as_object().unwrap() {
            assert_eq!(
                error(&with(&format!("{pointer}/{field}"), value.clone())),
                format!("{path}.{field}: is not supported: {reason}")
            );
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
fn a_context_must_lead_to_one_cluster_and_user() {
    for (pointer, value, expected) in [
        (
            "/current-context",
            json!("hunter2"),
            "contexts: no entry has the name that current-context refers to",
        ),
        (
            "/contexts",
            json!([]),
            "contexts: no entry has the name that current-context refers to",
        ),
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
    ] {
        assert_eq!(error(&with(pointer, value)), expected, "{pointer}");
    }
}

#[test]
fn a_value_of_the_wrong_type_is_refused_with_its_place() {
    const WRONG_TYPE: &str = "has a value of the wrong type";
    for (pointer, value, path, reason) in [
        ("/current-context", json!(["b"]), "current-context", WRONG_TYPE),
        ("/contexts", json!("c"), "contexts", WRONG_TYPE),
        (
            "/contexts/1/context",
            json!("hunter2"),
            "contexts[1].context",
            "must be a mapping",
        ),
        (
            "/contexts/1/context/cluster",
            json!(null),
            "contexts[1].context",
            "lacks the field cluster",
        ),
        (
            "/contexts/1/context/cluster",
            json!(["hunter2"]),
            "contexts[1].context.cluster",
            WRONG_TYPE,
        ),
        (
            "/clusters/1/cluster",
            json!(null),
            "clusters[1].cluster",
            "must be a mapping",
        ),
        (
            "/users/0/user/token",
            json!({"hunter2": 1}),
            "users[0].user.token",
            WRONG_TYPE,
        ),
        ("/users", json!({"u": 1}), "users", WRONG_TYPE),
    ] {
        assert_eq!(error(&with(pointer, value)), format!("{path}: {reason}"));
    }
}

#[test]
fn malformed_fields_are_refused_by_name() {
    let bad_pem = "-----BEGIN CERTIFICATE-----\nhunter2!\n-----END CERTIFICATE-----\n";
    let authority = "certificate-authority-data";
    for ((pointer, path), field, value, reason) in [
        (CLUSTER, "server", json!(null), "is required"),
        (
            CLUSTER,
            "server",
            json!("http://hunter2"),
            "must be https: credentials are not sent in the clear",
        ),
        (
            CLUSTER,
            "server",
            json!("hunter2:443"),
            "must be an address such as https://host:443, with https:// before the host",
        ),
        (
            CLUSTER,
            "server",
            json!("https://a b"),
            "is not an address such as https://host:443",
        ),
        (
            CLUSTER,
            "server",
            json!("https://bücher.example"),
            "must be ASCII; write an internationalized name as xn--…",
        ),
        (
            CLUSTER,
            "server",
            json!("https://u:hunter2@host"),
            "must not hold credentials; put them into the user",
        ),
        (
            CLUSTER,
            "server",
            json!("https://h:hunter2"),
            "must have a port between 1 and 65535, or none",
        ),
        (
            CLUSTER,
            "server",
            json!("https://[fe80::1%25eth0]:443"),
            "must not have the zone of an IPv6 address; use an address or a name without one",
        ),
        (
            CLUSTER,
            "server",
            json!("https://h:65536"),
            "must have a port between 1 and 65535, or none",
        ),
        (
            CLUSTER,
            "server",
            json!("https://h/?x=1"),
            "must not have a query",
        ),
        (
            CLUSTER,
            "tls-server-name",
            json!("not a name"),
            "must be a DNS name or an IP address",
        ),
        (CLUSTER, authority, json!("hunter2!"), "is not base64"),
        (
            CLUSTER,
            authority,
            json!(encoded("hunter2")),
            "holds no certificate in PEM",
        ),
        (
            CLUSTER,
            authority,
            json!(encoded(bad_pem)),
            "holds no certificate in PEM",
        ),
        (
            USER,
            "token",
            json!("hunter2 with space"),
            "has characters that no HTTP header can carry",
        ),
    ] {
        let expected = format!("{path}.{field}: {reason}");
        assert_eq!(error(&with(&format!("{pointer}/{field}"), value)), expected);
    }
    let mut no_key = with("/users/0/user/client-key-data", json!(encoded(&PKI.cert)));
    no_key["users"][0]["user"]["client-certificate-data"] = json!(encoded(&PKI.cert));
    let expected = "users[0].user.client-key-data: holds no private key in PEM";
    assert_eq!(error(&no_key), expected);
    for (given, value, missing) in [
        ("client-certificate-data", &PKI.cert, "client-key-data"),
        ("client-key-data", &PKI.key, "client-certificate-data"),
    ] {
        let expected = format!("users[0].user.{missing}: is required beside {given}");
        let config = with(&format!("/users/0/user/{given}"), json!(encoded(value)));
        assert_eq!(error(&config), expected);
    }
}

#[test]
fn documents_that_are_no_kubeconfig_are_refused() {
    let refused = |bytes: &[u8]| {
        let error = parse(bytes).unwrap_err();
        format!("{}: {}", error.field, error.reason)
    };
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
        assert_eq!(refused(document), expected);
    }
    let shown = parse(b"").unwrap_err().to_string();
    assert_eq!(shown, "the kubeconfig cannot be used: kubeconfig: is empty");
}

/// A kubeconfig larger than a Secret can be, or that grows when aliases are expanded, takes neither memory nor time.
#[test]
fn size_depth_and_aliases_are_bounded() {
    let refused = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
    let prefix = "the kubeconfig cannot be used: kubeconfig: ";
    let large = refused(&" ".repeat((1 << 20) + 1));
    assert_eq!(large, format!("{prefix}has 1048577 bytes; the limit is 1048576"));
    let deep = format!("a: {}x{}", "[".repeat(33), "]".repeat(33));
    let mut bomb = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for i in 1..10 {
        let list = vec![format!("*a{}", i - 1); 9].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    let wide = format!("a: [{}]", vec!["x"; 100_001].join(","));
    // Deeper than a stack: refused by the parser, or by us.
    for deep in ["[", "- ", "{a: ", "? ", "users: [{user: "] {
        assert!(refused(&deep.repeat(60_000)).starts_with("the kubeconfig cannot be used: "));
    }
    for text in [deep, bomb, wide] {
        let error = refused(&text);
        assert!(
            error.starts_with(&format!("{prefix}is too large or too deep at line ")),
            "{error}"
        );
    }
}
