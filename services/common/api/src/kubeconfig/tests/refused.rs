//! Kubeconfigs that must be refused, and those with errors.

use super::*;

#[test]
fn what_would_leave_the_process_is_refused_by_name() {
    let user = [
        (
            "exec",
            json!({"command": "hunter2"}),
            "programs are not run; use token or client-certificate-data",
        ),
        (
            "auth-provider",
            json!({"name": "hunter2"}),
            "auth providers are not used; use token or client-certificate-data",
        ),
        ("tokenFile", json!("/hunter2"), "files are not read; use token"),
        (
            "client-certificate",
            json!("/hunter2"),
            "files are not read; use client-certificate-data",
        ),
        (
            "client-key",
            json!("/hunter2"),
            "files are not read; use client-key-data",
        ),
        (
            "username",
            json!("hunter2"),
            "basic authentication is not used; use token or client-certificate-data",
        ),
        (
            "password",
            json!("hunter2"),
            "basic authentication is not used; use token or client-certificate-data",
        ),
        (
            "as",
            json!("hunter2"),
            "impersonation is not used; give the user itself the permissions",
        ),
        (
            "as-uid",
            json!("hunter2"),
            "impersonation is not used; give the user itself the permissions",
        ),
        (
            "as-groups",
            json!(["hunter2"]),
            "impersonation is not used; give the user itself the permissions",
        ),
        (
            "as-user-extra",
            json!({"a": ["hunter2"]}),
            "impersonation is not used; give the user itself the permissions",
        ),
    ];
    for (field, value, reason) in user {
        let expected = format!("users[0].user.{field}: is not supported: {reason}");
        assert_eq!(error(&with(&format!("/users/0/user/{field}"), value)), expected);
    }
    let cluster = [
        (
            "certificate-authority",
            json!("/hunter2"),
            "files are not read; put the PEM into certificate-authority-data",
        ),
        (
            "proxy-url",
            json!("socks5://hunter2"),
            "proxies are not used; name the address of the kube-apiserver itself",
        ),
        (
            "insecure-skip-tls-verify",
            json!(true),
            "the server must be verified; set certificate-authority-data and, if need be, tls-server-name",
        ),
    ];
    for (field, value, reason) in cluster {
        let expected = format!("clusters[1].cluster.{field}: is not supported: {reason}");
        assert_eq!(
            error(&with(&format!("/clusters/1/cluster/{field}"), value)),
            expected
        );
    }
    // Unset or switched off they do no harm.
    for (pointer, value) in [
        ("/users/0/user/exec", json!(null)),
        ("/users/0/user/tokenFile", json!("")),
        ("/clusters/1/cluster/insecure-skip-tls-verify", json!(false)),
    ] {
        assert!(read(&with(pointer, value)).is_ok(), "{pointer}");
    }
}

#[test]
fn malformed_fields_are_refused_by_name() {
    let rows = [
        (
            "/current-context",
            json!("hunter2"),
            "contexts: no entry has the name that current-context refers to",
        ),
        (
            "/current-context",
            json!(["b"]),
            "current-context: has a value of the wrong type at",
        ),
        (
            "/contexts",
            json!([]),
            "contexts: no entry has the name that current-context refers to",
        ),
        (
            "/contexts",
            json!({}),
            "contexts: has a value of the wrong type at",
        ),
        (
            "/contexts/1/context",
            json!("c"),
            "contexts[1].context: has a value of the wrong type at",
        ),
        (
            "/contexts/1/context/cluster",
            json!(null),
            "contexts[1].context.cluster: has a value of the wrong type at",
        ),
        (
            "/contexts/1/context/cluster",
            json!("x"),
            "clusters: no entry has the name that the context refers to",
        ),
        (
            "/contexts/1/context/user",
            json!("x"),
            "users: no entry has the name that the context refers to",
        ),
        (
            "/contexts/0/name",
            json!("b"),
            "contexts[1].name: is the same as that of an entry before",
        ),
        (
            "/clusters/1/cluster/server",
            json!(null),
            "clusters[1].cluster.server: is required",
        ),
        (
            "/clusters/1/cluster/server",
            json!("http://hunter2"),
            "clusters[1].cluster.server: must be https: credentials are not sent in the clear",
        ),
        (
            "/clusters/1/cluster/server",
            json!("hunter2:443"),
            "clusters[1].cluster.server: must be an address such as https://host:443",
        ),
        (
            "/clusters/1/cluster/server",
            json!("https://a b"),
            "clusters[1].cluster.server: is not an address such as https://host:443",
        ),
        (
            "/clusters/1/cluster/server",
            json!("https://u:hunter2@host"),
            "clusters[1].cluster.server: must not hold credentials; put them into the user",
        ),
        (
            "/clusters/1/cluster/server",
            json!("https://h/?x=1"),
            "clusters[1].cluster.server: must not have a query",
        ),
        (
            "/clusters/1/cluster/tls-server-name",
            json!("not a name"),
            "clusters[1].cluster.tls-server-name: must be a DNS name or an IP address",
        ),
        (
            "/clusters/1/cluster/certificate-authority-data",
            json!("hunter2!"),
            "clusters[1].cluster.certificate-authority-data: is not base64",
        ),
        (
            "/clusters/1/cluster/certificate-authority-data",
            json!(encoded("hunter2")),
            "clusters[1].cluster.certificate-authority-data: holds no certificate in PEM",
        ),
        (
            "/clusters/1/cluster/certificate-authority-data",
            json!(encoded(
                "-----BEGIN CERTIFICATE-----\nhunter2!\n-----END CERTIFICATE-----\n"
            )),
            "clusters[1].cluster.certificate-authority-data: is not PEM",
        ),
        (
            "/users/0/user/token",
            json!("hunter2 with space"),
            "users[0].user.token: has characters that no HTTP header can carry",
        ),
        (
            "/users/0/user/client-certificate-data",
            json!(encoded(&PKI.cert)),
            "users[0].user.client-key-data: is required beside client-certificate-data",
        ),
        (
            "/users/0/user/client-key-data",
            json!(encoded(&PKI.key)),
            "users[0].user.client-certificate-data: is required beside client-key-data",
        ),
        (
            "/users/0/user/client-key-data",
            json!(encoded(&PKI.cert)),
            "users[0].user.client-key-data: holds no private key in PEM",
        ),
    ];
    for (pointer, value, expected) in rows {
        let error = error(&with(pointer, value.clone()));
        // What cannot be decoded is shown with its place.
        let place = error
            .find(" at line 1, column ")
            .map_or(error.len(), |at| at + " at".len());
        assert_eq!(&error[..place], expected, "{pointer} = {value}");
    }
}

#[test]
fn documents_that_are_no_kubeconfig_are_refused() {
    let refused = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    let prefix = "the kubeconfig cannot be used: kubeconfig: ";
    assert_eq!(refused(b""), format!("{prefix}is empty"));
    assert_eq!(refused(b"null"), format!("{prefix}is empty"));
    assert_eq!(
        refused(b"hunter2"),
        format!("{prefix}has a value of the wrong type at line 1, column 1")
    );
    assert_eq!(
        refused(b"a: [hunter2\nb: 1"),
        format!("{prefix}is not valid YAML at line 2, column 2")
    );
    assert_eq!(
        refused(b"a: \xff"),
        format!("{prefix}the file is not UTF-8 at line 1, column 4")
    );
    assert_eq!(
        refused(b"users: []\nusers: []"),
        format!("{prefix}has the same field twice at line 2, column 1")
    );
    assert_eq!(
        refused(b"a: {b: 1, b: 2}"),
        format!("{prefix}has the same field twice at line 1, column 11")
    );
    assert_eq!(
        refused(b"contexts:\n- context:\n    user: u\n"),
        "the kubeconfig cannot be used: contexts[0].context: lacks the field cluster at line 3, column 5"
    );
    assert_eq!(
        refused(b"users:\n- name: u\n  user: {hunter2: {hunter3: 1, hunter3: 2}}\n"),
        "the kubeconfig cannot be used: users[0].user: has the same field twice at line 3, column 32"
    );
    assert_eq!(
        refused(b"users: []\n---\nusers: []\n"),
        format!("{prefix}is not valid YAML at line 3, column 1")
    );
    assert_eq!(
        refused(b"users: !hunter2 []\n"),
        format!("{prefix}is not valid YAML at line 1, column 17")
    );
    assert_eq!(
        refused(b"apiVersion: v1"),
        "the kubeconfig cannot be used: contexts: must hold a context"
    );
}

/// A kubeconfig larger than a Secret can be, or that grows when aliases are expanded, takes neither memory nor time.
#[test]
fn size_depth_and_aliases_are_bounded() {
    let refused = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
    let prefix = "the kubeconfig cannot be used: kubeconfig: ";
    let large = refused(&" ".repeat((1 << 20) + 1));
    assert_eq!(
        large,
        format!("{prefix}the file has 1048577 bytes; the limit is 1048576 at line 1, column 1")
    );
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
