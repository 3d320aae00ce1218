//! Kubeconfigs with inline data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

/// A kubeconfig for one cluster and one bearer token, all of it inline as Gardener's Secrets have it. The text is
/// JSON, which is YAML too.
pub fn kubeconfig(url: &str, ca_pem: &str, user: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": user}}],
        "clusters": [{
            "name": "default",
            "cluster": {"server": url, "certificate-authority-data": STANDARD.encode(ca_pem)},
        }],
        "users": [{"name": user, "user": {"token": token}}],
    })
    .to_string()
}
