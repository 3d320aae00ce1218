mod refused;
mod reports;
mod seed;

use super::*;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use rustls_pki_types::pem::PemObject;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::sync::LazyLock;

const TOKEN: &str = "hunter2-hunter2";
const GARDENER: &str = include_str!("../../tests/fixtures/kubeconfig-gardener.yaml");

struct Pki {
    der: CertificateDer<'static>,
    cert: String,
    key: String,
}

static PKI: LazyLock<Pki> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(vec!["kube-apiserver".to_owned()]).unwrap();
    Pki {
        der: made.cert.der().clone(),
        cert: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    }
});

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

/// A kubeconfig that is used, as JSON (which is YAML too).
fn good() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "extensions": [{"name": "x", "extension": {}}],
        "current-context": "b",
        "clusters": [
            {"name": "other", "cluster": {"server": "http://refused:1", "insecure-skip-tls-verify": true}},
            {"name": "c", "cluster": {"server": "https://api.example.com:6443/prefix/x",
                "certificate-authority-data": encoded(&PKI.cert), "tls-server-name": "kube-apiserver"}},
        ],
        "users": [
            {"name": "u", "user": {"token": TOKEN}},
            {"name": "other", "user": {"exec": {"command": "rm"}}},
        ],
        "contexts": [
            {"name": "a", "context": {"cluster": "other", "user": "other"}},
            {"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "default"}},
        ],
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut config = good();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = config.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(items) => items[field.parse::<usize>().unwrap()] = value,
        _ => parent[field] = value,
    }
    config
}

fn read(config: &Value) -> Result<ShootAccess, KubeconfigError> {
    parse(config.to_string().as_bytes())
}

/// The error, checked not to show what it must not.
fn error(config: &Value) -> String {
    let error = read(config).unwrap_err();
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(
            !shown.contains("hunter2") && !shown.contains(&encoded("hunter2")[..8]),
            "{shown}"
        );
    }
    format!("{}: {}", error.field, error.reason)
}

#[test]
fn reads_the_current_context() {
    let access = read(&good()).unwrap();
    assert_eq!(access.server, "https://api.example.com:6443/prefix/x");
    assert_eq!(access.server.path(), "/prefix/x");
    assert_eq!(access.authorities, Some(vec![PKI.der.clone()]));
    assert_eq!(access.tls_server_name.unwrap().to_str(), "kube-apiserver");
    assert_eq!(access.token.as_ref().unwrap().expose_secret(), TOKEN);
    assert!(access.client_certificate.is_none());
}

#[test]
fn reads_the_file_that_gardener_writes() {
    let access = parse(GARDENER.replace("CA-DATA", &encoded(&PKI.cert)).as_bytes()).unwrap();
    assert_eq!(access.server, "https://kube-apiserver");
    assert_eq!(
        access.token.as_ref().unwrap().expose_secret(),
        "eyJhbGciOi.J9.x-y_z"
    );
    // Before the token requestor has filled it in.
    let fresh = GARDENER.replace("CA-DATA", &encoded(&PKI.cert));
    let fresh = fresh.split("  user:\n").next().unwrap().to_owned() + "  user: {}\n";
    let credentials = parse(fresh.as_bytes()).unwrap();
    assert!(credentials.token.is_none() && credentials.client_certificate.is_none());
}

#[test]
fn the_only_context_needs_no_name() {
    let mut config = good();
    config["contexts"] = json!([{"name": "b", "context": {"cluster": "c"}}]);
    for current in [json!(null), json!("")] {
        config["current-context"] = current;
        let access = read(&config).unwrap();
        assert!(
            access.token.is_none() && access.client_certificate.is_none(),
            "a context may have no user"
        );
    }
    config = good();
    config["current-context"] = json!(null);
    assert_eq!(
        error(&config),
        "current-context: is required when there are several contexts"
    );
}

#[test]
fn reads_client_certificates() {
    let certificate = json!({
        "client-certificate-data": encoded(&PKI.cert), "client-key-data": encoded(&PKI.key), "token": null,
    });
    let access = read(&with("/users/0/user", certificate.clone())).unwrap();
    let found = access.client_certificate.as_ref().unwrap();
    assert_eq!(found.chain, std::slice::from_ref(&PKI.der));
    assert_eq!(
        found.key,
        PrivateKeyDer::from_pem_slice(PKI.key.as_bytes()).unwrap()
    );
    assert!(access.token.is_none());

    let mut both = certificate;
    both["token"] = json!(TOKEN);
    let access = read(&with("/users/0/user", both)).unwrap();
    assert!(access.token.is_some() && access.client_certificate.is_some());
}

#[test]
fn debug_shows_no_secret() {
    let mut config = good();
    config["users"][0]["user"]["client-certificate-data"] = json!(encoded(&PKI.cert));
    config["users"][0]["user"]["client-key-data"] = json!(encoded(&PKI.key));
    let shown = format!("{:?}", read(&config).unwrap());
    assert!(shown.contains("https://api.example.com:6443/prefix/x"));
    for secret in ["hunter2", "PRIVATE KEY", &PKI.key[40..60]] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

proptest! {
    /// However a kubeconfig is damaged, no error repeats its token or any other text of it.
    #[test]
    fn damaged_kubeconfigs_leak_nothing(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = good().to_string().into_bytes();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        let of_seed = of_seed(&["seed".into()], None, &|_| Ok(bytes.clone()));
        for error in [parse(&bytes).err(), of_seed.err()].into_iter().flatten() {
            let shown = format!("{error} {error:?}");
            prop_assert!(!shown.contains("hunter2") && !shown.contains("example.com"), "{}", shown);
        }
    }
}
