//! The answer of an exec plugin, an ExecCredential of client.authentication.k8s.io, in JSON or YAML.

use super::{ClientCertificate, Result, field, refuse};
use crate::yaml;
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

/// The credentials that a plugin gives, or another source of those that end.
#[derive(Debug, Default)]
pub struct PluginCredentials {
    /// The `Authorization` of requests.
    pub authorization: Option<SecretString>,
    /// The certificate of the TLS handshake.
    pub client_certificate: Option<ClientCertificate>,
    /// When they end; `None` if the plugin does not say.
    pub ends: Option<Timestamp>,
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<PluginStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PluginStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Reads what a plugin has written.
///
/// # Errors
/// The first thing that is wrong, by field; never a value.
pub fn credentials_of_plugin(output: &[u8]) -> Result<PluginCredentials> {
    let read = serde_saphyr::from_slice_with_options::<ExecCredential>(output, yaml::options());
    let Ok(ExecCredential { status }) = read else {
        return refuse("its output", "is not an ExecCredential");
    };
    let Some(status) = status else {
        return refuse("status", "is missing");
    };
    let filled = |value: Option<String>| value.filter(|value| !value.is_empty());
    let token = filled(status.token).map(|token| field::header_text(&token, "status.token".to_owned()));
    let chain = filled(status.client_certificate_data);
    let key = filled(status.client_key_data).map(SecretString::from);
    let client_certificate = field::client_certificate(
        chain.as_ref().map(String::as_bytes),
        key.as_ref().map(|key| key.expose_secret().as_bytes()),
        ["status.clientCertificateData", "status.clientKeyData"],
    )?;
    let token = token.transpose()?;
    if token.is_none() && client_certificate.is_none() {
        return refuse("status", "has neither a token nor a client certificate");
    }
    let ends = filled(status.expiration_timestamp).map(|end| end.parse::<Timestamp>());
    let Ok(ends) = ends.transpose() else {
        return refuse("status.expirationTimestamp", "is not a time");
    };
    Ok(PluginCredentials {
        authorization: token.as_ref().map(field::bearer),
        client_certificate,
        ends,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(status: serde_json::Value) -> Result<PluginCredentials> {
        let answer = json!({"kind": "ExecCredential", "status": status});
        credentials_of_plugin(answer.to_string().as_bytes())
    }

    #[test]
    fn a_token_and_a_certificate_are_read_with_their_end() {
        let read =
            of(json!({"token": "hunter2\n", "expirationTimestamp": "2026-11-26T05:00:00+01:00"})).unwrap();
        assert_eq!(read.authorization.unwrap().expose_secret(), "Bearer hunter2");
        assert_eq!(read.ends.unwrap().to_string(), "2026-11-26T04:00:00Z");
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let read = of(json!({"token": null, "clientCertificateData": chain, "clientKeyData": key})).unwrap();
        assert_eq!(
            read.client_certificate.unwrap().chain,
            std::slice::from_ref(made.cert.der())
        );
        assert!(read.authorization.is_none() && read.ends.is_none());
        assert!(
            credentials_of_plugin(b"kind: ExecCredential\nstatus:\n  token: x\n").is_ok(),
            "YAML"
        );
    }

    #[test]
    fn what_cannot_be_used_is_named_and_not_shown() {
        const NOTHING: &str = "status: has neither a token nor a client certificate";
        const HEADER: &str = "status.token: has characters that no HTTP header can carry";
        const NO_KEY: &str = "status.clientKeyData: is required beside clientCertificateData";
        const NO_PEM: &str = "status.clientCertificateData: holds no certificate in PEM";
        for (status, expected) in [
            ("null", "status: is missing"),
            ("{}", NOTHING),
            ("{token: ''}", NOTHING),
            ("{token: hunter2 hunter2}", HEADER),
            ("{clientCertificateData: hunter2}", NO_KEY),
            ("{clientCertificateData: hunter2, clientKeyData: hunter2}", NO_PEM),
            (
                "{token: x, expirationTimestamp: hunter2}",
                "status.expirationTimestamp: is not a time",
            ),
        ] {
            let error = credentials_of_plugin(format!("status: {status}").as_bytes()).unwrap_err();
            assert_eq!(format!("{}: {}", error.field, error.reason), expected);
        }
        for output in [&b""[..], b"hunter2", b"{", b"\xff", b"[]"] {
            let error = credentials_of_plugin(output).unwrap_err();
            assert!(!error.reason.contains("hunter2"), "{error}");
        }
    }
}
