//! Allows callers by the names in their certificates.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use watchdog_certificates::dns_names;

use crate::caller_quota::{Caller, CallerKind};

/// Names shown in a refusal at most: a certificate may carry any number.
const SHOWN: usize = 5;

/// The callers that are allowed, our own services first. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct AllowedClients(Arc<[Caller]>);

impl AllowedClients {
    /// Callers whose certificate carries one of these names.
    #[must_use]
    pub fn named(own_services: &[String], others: &[String]) -> Self {
        let callers = |names: &[String], kind| {
            let caller = |name: &String| Caller {
                name: name.to_ascii_lowercase().into(),
                kind,
            };
            names.iter().map(caller).collect()
        };
        let all: [Vec<Caller>; 2] = [
            callers(own_services, CallerKind::OwnService),
            callers(others, CallerKind::Client),
        ];
        Self(all.concat().into())
    }

    /// Checks an authenticated caller by its certificate. Of several names, that of an own service counts.
    ///
    /// # Errors
    /// When it is not allowed: why, for the caller.
    pub(crate) fn check(&self, certificate: Option<&CertificateDer<'_>>) -> Result<Caller, String> {
        let certificate = certificate.ok_or("the caller presented no certificate")?;
        let names = dns_names(certificate).ok_or("the caller's certificate cannot be read")?;
        let carries = |caller: &&Caller| names.iter().any(|name| caller.name.eq_ignore_ascii_case(name));
        if let Some(caller) = self.0.iter().find(carries) {
            return Ok(caller.clone());
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
        Err(format!(
            "the caller's certificate carries {shown}, which --tls-allowed-client does not name"
        ))
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
        for (good, name, kind) in [
            (
                &["coordinator.garden.svc"][..],
                "coordinator.garden.svc",
                CallerKind::OwnService,
            ),
            (&["x.test", "reader.TEST"], "reader.test", CallerKind::Client),
            (
                &["reader.test", "COORDINATOR.garden.svc"],
                "coordinator.garden.svc",
                CallerKind::OwnService,
            ),
        ] {
            let caller = callers.check(Some(&certificate(good))).unwrap();
            assert_eq!((&*caller.name, caller.kind), (name, kind));
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
            let refused = callers.check(shown).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let nobody = AllowedClients::default();
        assert!(nobody.check(Some(&certificate(&["x.test"]))).is_err());
    }
}
