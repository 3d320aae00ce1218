//! Looks at one replica: its health, certificate, version and clock.

use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::ServerName;
use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use watchdog_api::text::printable;
use watchdog_certificates::ValidityPeriod;
use watchdog_client::tls::ClientTls;

use super::ProgramDialer;
use crate::error::{CommandError, CommandResult};
use crate::program::Program;

/// A replica answers within this time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The metadata of answers: see docs/reference/api.md.
const REPLICA: &str = "watchdog-replica";
const VERSION: &str = "watchdog-version";
const BLOCKER: &str = "watchdog-blocker";

/// The facts about one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplicaFacts {
    pub(crate) program: &'static str,
    /// The name of its pod, or its address.
    pub(crate) name: String,
    /// Why it did not answer.
    pub(crate) error: Option<String>,
    pub(crate) is_serving: bool,
    /// The blockers that keep it from being ready.
    pub(crate) blockers: Vec<String>,
    /// Its own name for itself.
    pub(crate) replica: Option<String>,
    pub(crate) version: Option<String>,
    /// By how much its clock is ahead of this machine's.
    pub(crate) ahead_seconds: Option<i64>,
    pub(crate) is_encrypted: bool,
    /// From when to when its certificate is valid, if that could be read.
    pub(crate) validity: Option<ValidityPeriod>,
}

/// Looks at a replica: its health, the metadata of its answers, its certificate.
pub(crate) async fn inspect(dialer: &ProgramDialer, program: Program, name: &str) -> ReplicaFacts {
    let mut facts = ReplicaFacts {
        program: program.as_str(),
        name: name.to_owned(),
        ..ReplicaFacts::default()
    };
    match timeout(TIMEOUT, health(dialer, program, &mut facts)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => facts.error = Some(error.to_string()),
        Err(_) => facts.error = Some("no answer within 10 s".to_owned()),
    }
    if let Ok(Some(own)) = dialer.certificate() {
        facts.is_encrypted = true;
        let validity = timeout(TIMEOUT, validity(dialer, program, name, &own.tls)).await;
        facts.validity = validity.ok().flatten();
    }
    facts
}

async fn health(dialer: &ProgramDialer, program: Program, facts: &mut ReplicaFacts) -> CommandResult<()> {
    let mut client = HealthClient::new(dialer.channel_to(program, &facts.name)?);
    let request = HealthCheckRequest {
        service: program.grpc_service().to_owned(),
    };
    let answer = client.check(request).await;
    let now = Timestamp::now();
    let name = format!("{program} {}", facts.name);
    let answer = answer.map_err(|status| CommandError::of_status(&name, &status))?;
    facts.is_serving = answer.get_ref().status() == ServingStatus::Serving;
    let metadata = answer.metadata();
    facts.replica = text(metadata, REPLICA);
    facts.version = text(metadata, VERSION);
    let blockers = metadata.get_all(BLOCKER).iter();
    let blockers = blockers.filter_map(|value| Some(printable(value.to_str().ok()?)));
    facts.blockers = blockers.collect();
    facts.ahead_seconds = text(metadata, "date").and_then(|date| ahead(&date, now));
    Ok(())
}

fn text(metadata: &MetadataMap, name: &str) -> Option<String> {
    Some(printable(metadata.get(name)?.to_str().ok()?))
}

/// How far a clock is ahead of this one, by the Date header, whose resolution is a second.
fn ahead(date: &str, now: Timestamp) -> Option<i64> {
    let date = jiff::fmt::rfc2822::parse(date).ok()?;
    Some(date.timestamp().as_second() - now.as_second())
}

/// From when to when the certificate is valid that the replica shows.
async fn validity(
    dialer: &ProgramDialer,
    program: Program,
    replica: &str,
    own: &ClientTls,
) -> Option<ValidityPeriod> {
    let name = ServerName::try_from(dialer.server_name(program)).ok()?;
    let tls = tokio_rustls::TlsConnector::from(own.current().await);
    let transport = dialer.connect(replica).await.ok()?;
    let stream = tls.connect(name, transport).await.ok()?;
    let (_, session) = stream.get_ref();
    ValidityPeriod::of(session.peer_certificates()?.first()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_by_the_date_header() {
        let now = Timestamp::from_second(784_111_777).unwrap();
        assert_eq!(ahead("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(0));
        assert_eq!(ahead("Sun, 06 Nov 1994 08:49:40 GMT", now), Some(3));
        assert_eq!(ahead("yesterday", now), None);
    }
}
