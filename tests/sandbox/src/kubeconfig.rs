//! Kubeconfig files with everything inline, as a Secret may carry them.

use base64::{Engine, engine::general_purpose::STANDARD};

/// How the user of a kubeconfig proves who it is.
pub(crate) enum Proof<'a> {
    /// A bearer token.
    Token(&'a str),
    /// PEM of a client certificate and its key.
    Certificate { certificate: &'a str, key: &'a str },
}

/// YAML of a kubeconfig with one cluster, one user and one context.
pub(crate) fn render(server: &str, ca_pem: &str, cluster: &str, user: &str, proof: &Proof<'_>) -> String {
    // A JSON string is a YAML string too.
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let proof = match proof {
        Proof::Token(token) => format!("token: {}", quote(token)),
        Proof::Certificate { certificate, key } => format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            STANDARD.encode(certificate),
            STANDARD.encode(key)
        ),
    };
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
    {proof}
contexts:
- name: {cluster}
  context:
    cluster: {cluster}
    user: {user}
current-context: {cluster}
",
        cluster = quote(cluster),
        user = quote(user),
        ca = STANDARD.encode(ca_pem),
    )
}
