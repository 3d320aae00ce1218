//! Allows callers by the names in their certificates.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use watchdog_certificates::dns_names;

use crate::caller_quota::Caller;

/// Names shown in a refusal at most: a certificate may carry any number.
const SHOWN: usize = 5;

/// Why a caller is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientNotAllowed {
    /// It did not authenticate.
    #[error("the caller presented no certificate")]
    NoCertificate,
    /// Its certificate is malformed.
    #[error("the caller's certificate cannot be read")]
    Unreadable,
    /// No name in its certificate is allowed. Some of them, for people.
    #[error("the caller's certificate carries {0}, which --tls-allowed-client does not name")]
    OtherNames(String),
}

/// The DNS names that callers may have: of our own services, and of others. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct AllowedClients {
    own_services: Arc<BTreeSet<String>>,
    others: Arc<BTreeSet<String>>,
}

impl AllowedClients {
    /// Callers whose certificate carries one of these names.
    #[must_use]
    pub fn named(own_services: &[String], others: &[String]) -> Self {
        let set = |names: &[String]| Arc::new(names.iter().map(|name| name.to_ascii_lowercase()).collect());
        Self {
            own_services: set(own_services),
            others: set(others),
        }
    }

    /// Checks an authenticated caller by its certificate.
    ///
    /// # Errors
    /// When it is not allowed.
    pub(crate) fn check(&self, certificate: Option<&CertificateDer<'_>>) -> Result<Caller, ClientNotAllowed> {
        let certificate = certificate.ok_or(ClientNotAllowed::NoCertificate)?;
        let names = dns_names(certificate).ok_or(ClientNotAllowed::Unreadable)?;
        let one_of = |allowed: &BTreeSet<String>| {
            let mut names = names.iter().map(|name| name.to_ascii_lowercase());
            names.find(|name| allowed.contains(name))
        };
        for (allowed, is_own_service) in [(&self.own_services, true), (&self.others, false)] {
            if let Some(name) = one_of(allowed) {
                return Ok(Caller {
                    name: name.into(),
                    is_own_service,
                });
            }
        }
        let shown = match names.as_slice() {
            [] => "no DNS name".to_owned(),
            names => names
                .iter()
                .take(SHOWN)
                .map(|name| format!("{name:?}"))
                .collect::<Vec<_>>()
                .join(", "),
        };
        Err(ClientNotAllowed::OtherNames(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[&str]) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        rcgen::generate_simple_self_signed(names)
            .unwrap()
            .cert
            .der()
            .clone()
    }

    #[test]
    fn one_of_the_names_must_match_whole() {
        let own = ["coordinator.garden.svc".to_owned()];
        let callers = AllowedClients::named(&own, &["Reader.test".to_owned()]);
        for (good, name, is_own_service) in [
            (&["coordinator.garden.svc"][..], "coordinator.garden.svc", true),
            (&["x.test", "reader.TEST"], "reader.test", false),
            (
                &["reader.test", "COORDINATOR.garden.svc"],
                "coordinator.garden.svc",
                true,
            ),
        ] {
            let caller = callers.check(Some(&certificate(good))).unwrap();
            assert_eq!((&*caller.name, caller.is_own_service), (name, is_own_service));
        }
        let evil = certificate(&["evil.test", "coordinator.garden.svc.evil.test"]);
        let (nameless, broken) = (certificate(&[]), CertificateDer::from(vec![1, 2, 3]));
        for (shown, why) in [
            (Some(&evil), "carries \"evil.test\", "),
            (
                Some(&nameless),
                "carries no DNS name, which --tls-allowed-client does not name",
            ),
            (None, "presented no certificate"),
            (Some(&broken), "cannot be read"),
        ] {
            let refused = callers.check(shown).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let nobody = AllowedClients::default();
        assert!(nobody.check(Some(&certificate(&["x.test"]))).is_err());
    }
}
