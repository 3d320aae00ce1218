//! What a kubeconfig must not ask for, and what is wrong in one.

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
            "current-context: must be a text",
        ),
        (
            "/contexts",
            json!([]),
            "contexts: no entry has the name that current-context refers to",
        ),
        ("/contexts", json!({}), "contexts: must be a list"),
        (
            "/contexts/1/context",
            json!("c"),
            "contexts[1].context: must be a mapping",
        ),
        (
            "/contexts/1/context/cluster",
            json!(null),
            "contexts[1].context.cluster: is required",
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
        assert_eq!(
            error(&with(pointer, value.clone())),
            expected,
            "{pointer} = {value}"
        );
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
        format!("{prefix}must be a mapping with clusters, contexts and users")
    );
    assert_eq!(
        refused(b"a: [hunter2\nb: 1"),
        format!("{prefix}is not valid YAML at line 2, column 2")
    );
    assert_eq!(
        refused(b"a: \xff"),
        format!("{prefix}is not valid YAML at line 1, column 4")
    );
    assert_eq!(
        refused(b"users: []\nusers: []"),
        format!("{prefix}has the same field twice, at line 2, column 1")
    );
    assert_eq!(
        refused(b"a: {b: 1, b: 2}"),
        format!("{prefix}has the same field twice, at line 1, column 11")
    );
    assert_eq!(
        refused(b"apiVersion: v1"),
        "the kubeconfig cannot be used: contexts: must hold a context"
    );
}
