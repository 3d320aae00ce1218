//! Kubeconfig files with everything inline, as a Secret may carry them.

use base64::{Engine, engine::general_purpose::STANDARD};

/// A JSON string is a YAML string too.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The credentials of a user: a bearer token.
pub(crate) fn token(token: &str) -> String {
    format!("token: {}", quote(token))
}

/// The credentials of a user: PEM of a client certificate and its key.
pub(crate) fn certificate(certificate: &str, key: &str) -> String {
    let (certificate, key) = (STANDARD.encode(certificate), STANDARD.encode(key));
    format!("client-certificate-data: {certificate}\n    client-key-data: {key}")
}

/// YAML of a kubeconfig with one cluster, one user and one context.
pub(crate) fn render(server: &str, ca_pem: &str, cluster: &str, user: &str, credentials: &str) -> String {
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
    {credentials}
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
