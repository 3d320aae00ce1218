//! The possible outcomes of a probe.

use std::net::IpAddr;
use std::time::Duration;

use watchdog_api::duration::format;
use watchdog_api::eligibility::SkipReason;
use watchdog_api::text::{begin, printable};

/// The outcome of the last probe of a shoot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The nodes are connected.
    Healthy,
    /// The nodes are cut off.
    LeasesExpired,
    /// The internal endpoint answers, the external one does not.
    ExternalUnreachable,
    /// The API server does not answer.
    ApiServerUnreachable,
    /// The API server answered 429.
    Throttled,
    /// Leases, nodes or machines could not be read.
    Inconclusive,
    /// One lease counts, and it is expired.
    TooFewCandidates,
    /// Not probed.
    Skipped(SkipReason),
    /// No probe has come to a result yet.
    #[default]
    Pending,
}

impl Outcome {
    /// As a label value: a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::LeasesExpired => "leases_expired",
            Self::ExternalUnreachable => "external_unreachable",
            Self::ApiServerUnreachable => "api_server_unreachable",
            Self::Throttled => "throttled",
            Self::Inconclusive => "inconclusive",
            Self::TooFewCandidates => "too_few_candidates",
            Self::Skipped(_) => "skipped",
            Self::Pending => "pending",
        }
    }

    /// Returns true if consumers scale down on this outcome.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        matches!(self, Self::LeasesExpired | Self::ExternalUnreachable)
    }
}

/// A permission that a probe needs in a shoot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShootPermission {
    /// For every probe.
    ListLeases,
    /// When a lease looks expired.
    ListNodes,
}

impl ShootPermission {
    /// For people, and as a label value: a closed set.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ListLeases => "list leases in namespace kube-node-lease",
            Self::ListNodes => "list nodes",
        }
    }
}

/// A host, and the address to which it resolves if it is a name.
fn with_address(host: &str, address: IpAddr) -> String {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(_) => host.to_owned(),
        Err(_) => format!("{host}, which is {address}"),
    }
}

/// Why a request to a shoot's API server gave no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeFailure {
    /// The kubeconfig is missing or cannot be used.
    #[error("The kubeconfig cannot be used: {0}.")]
    Kubeconfig(String),
    /// The host of its server is, or resolves to, an address of this machine or network segment.
    #[error(
        "The kubeconfig points to {}. lease-probe never connects to {kind} addresses. Set the server of the \
         kubeconfig to the address of the shoot's API server.",
        with_address(host, *address)
    )]
    AddressRefused {
        /// As it stands in the kubeconfig.
        host: String,
        /// After the resolution.
        address: IpAddr,
        /// Why it is refused.
        kind: &'static str,
    },
    /// Its name server does not know it, or does not answer, which is no evidence about the API server.
    #[error(
        "The name of the API server in the kubeconfig cannot be resolved: {0}. Check the name and the DNS \
         servers of this replica."
    )]
    NameLookup(String),
    /// The port is closed, or the connection broke.
    #[error("The API server cannot be reached: {0}.")]
    Connect(String),
    /// It ended the connection in the regular way, with a GOAWAY, while it had a request.
    #[error("The API server closed the connection during a request (GOAWAY).")]
    WentAway,
    /// Wrong authority, wrong name, or expired certificate.
    #[error("The TLS handshake with the API server failed: {0}.")]
    Tls(String),
    /// The list and GET /version both failed.
    #[error("The API server fails every request, or something else answers in its place: {0}.")]
    VersionFailed(String),
    /// No answer in time, not even to GET /version.
    #[error("The API server did not answer within {}.", format(*.0))]
    Timeout(Duration),
    /// Queueing in this process, which is no evidence about the API server.
    #[error("The API server was not asked: the request waited in the queue of this replica for {}. The \
             replica limits concurrent connection attempts and node lists. Give it more CPU, or add \
             replicas.", format(*.0))]
    QueueTimeout(Duration),
    /// A limit of this process or machine, which is no evidence about the API server.
    #[error(
        "The API server was not asked: this replica cannot open a connection: {0}. Check the limit of open files and \
             the memory of the node."
    )]
    LocalLimit(String),
    /// The answer has more than this number of bytes, even in small pages.
    #[error("An answer of the API server is larger than {} KiB. Look for large annotations of Leases and \
             nodes.", .0 / 1024)]
    AnswerTooLarge(usize),
    /// Memory of this process, which is no evidence about the API server. All large answers have this many bytes.
    #[error("The API server's answer was abandoned because other shoots were waiting: this replica has {} MiB for \
             large answers.", .0 / (1024 * 1024))]
    NoAnswerMemory(usize),
    /// The shoot has more leases than this number, which is its share now.
    #[error(
        "The shoot has more than {0} leases or nodes, the most that this replica can keep in memory for it now. Look \
             for leases without nodes, or raise --answer-memory."
    )]
    TooManyLeases(usize),
    /// With the wait that the server asks for, if any.
    #[error("The API server throttles (429){}.", requested_wait(*.0))]
    Throttled(Option<Duration>),
    /// The token or the client certificate is not accepted (any more).
    #[error("The API server does not accept the credentials of the kubeconfig (401): they may have expired.")]
    Unauthorized,
    /// The permissions that are missing, the one that was refused first.
    #[error("The kubeconfig's user lacks a permission (403): {}.", names(.0))]
    Forbidden(Vec<ShootPermission>),
    /// A status code and message, or a response that is no list.
    #[error("The API server answers, but the list failed: {0}.")]
    ListFailed(String),
    /// Failed at a later page, so the list is incomplete.
    #[error("The API server answers, but the list was interrupted: {0}.")]
    ListBrokeOff(String),
    /// No list in time, although GET /version is answered.
    #[error("The API server answers, but the list took longer than {}.", format(*.0))]
    ListTimeout(Duration),
    /// Any failure of that list except 429.
    #[error("The machines cannot be listed on the seed: {0}.")]
    Machines(String),
    /// With the wait that the seed's API server asks for, if any.
    #[error("The machines cannot be listed on the seed: it throttles (429){}.", requested_wait(*.0))]
    MachinesThrottled(Option<Duration>),
}

impl ProbeFailure {
    /// Its label value, and the outcome of a probe that failed this way, which never leads to a scale-down.
    const fn class(&self) -> (&'static str, Outcome) {
        use Outcome::{ApiServerUnreachable, Inconclusive};
        match self {
            Self::Connect(_) | Self::WentAway => ("connect", ApiServerUnreachable),
            Self::Tls(_) => ("tls", ApiServerUnreachable),
            Self::Timeout(_) => ("timeout", ApiServerUnreachable),
            // Something else may have answered in its place.
            Self::VersionFailed(_) => ("version_failed", ApiServerUnreachable),
            Self::Throttled(_) => ("throttled", Outcome::Throttled),
            Self::ListTimeout(_) => ("list_timeout", Inconclusive),
            Self::ListFailed(_) => ("list_failed", Inconclusive),
            Self::ListBrokeOff(_) => ("list_broke_off", Inconclusive),
            Self::AnswerTooLarge(_) => ("answer_too_large", Inconclusive),
            Self::Unauthorized => ("unauthorized", Inconclusive),
            Self::Forbidden(_) => ("forbidden", Inconclusive),
            Self::Kubeconfig(_) => ("kubeconfig", Inconclusive),
            Self::AddressRefused { .. } => ("address_refused", Inconclusive),
            Self::NameLookup(_) => ("name_lookup", Inconclusive),
            Self::QueueTimeout(_) => ("queue_timeout", Inconclusive),
            Self::LocalLimit(_) => ("local_limit", Inconclusive),
            Self::NoAnswerMemory(_) => ("no_answer_memory", Inconclusive),
            Self::TooManyLeases(_) => ("too_many_leases", Inconclusive),
            Self::Machines(_) => ("machines", Inconclusive),
            Self::MachinesThrottled(_) => ("machines_throttled", Inconclusive),
        }
    }

    /// The name server did not answer in this time.
    #[must_use]
    pub fn slow_lookup(limit: Duration) -> Self {
        Self::NameLookup(format!("the name server did not answer within {}", format(limit)))
    }

    /// As a label value: a closed set.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.class().0
    }

    /// The outcome of a probe that failed this way. It never leads to a scale-down.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.class().1
    }

    /// Returns true if the API server may have been away, or may refuse kubelets too: all but the causes in lease-probe
    /// and in the seed.
    #[must_use]
    pub const fn suggests_outage(&self) -> bool {
        let is_elsewhere = matches!(
            self,
            Self::Kubeconfig(_)
                | Self::AddressRefused { .. }
                | Self::TooManyLeases(_)
                | Self::Machines(_)
                | Self::MachinesThrottled(_)
        );
        !is_elsewhere && !self.is_own()
    }

    /// Returns true if the API server let the time pass. Connections to it may have died without a sign.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::ListTimeout(_))
    }

    /// Returns true if this process, or its name server, is the reason why there is no answer, so that nothing new is
    /// known about the server.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        matches!(
            self,
            Self::NameLookup(_) | Self::QueueTimeout(_) | Self::LocalLimit(_) | Self::NoAnswerMemory(_)
        )
    }

    /// Returns true if the API server of the shoot answered 429. The prober then pauses.
    #[must_use]
    pub const fn is_throttled(&self) -> bool {
        matches!(self, Self::Throttled(_))
    }
}

fn names(missing: &[ShootPermission]) -> String {
    missing
        .iter()
        .map(|permission| permission.as_str())
        .collect::<Vec<_>>()
        .join("; ")
}

fn requested_wait(wait: Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| {
        format!(" and asks to wait for {}", format(wait))
    })
}

/// The most characters of a foreign text in a sentence.
const LONGEST_QUOTE: usize = 300;

/// Text that comes from outside, printable and cut to what fits into a sentence.
#[must_use]
pub fn quote(text: &str) -> String {
    printable(&begin(text, LONGEST_QUOTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_a_label_and_an_outcome_and_may_suggest_an_outage() {
        let class = |failure: ProbeFailure| {
            let suggests = (failure.suggests_outage(), failure.is_timeout());
            (failure.as_str(), failure.outcome(), suggests)
        };
        assert_eq!(
            class(ProbeFailure::Unauthorized),
            ("unauthorized", Outcome::Inconclusive, (true, false)),
            "kubelets may also be refused"
        );
        assert_eq!(
            class(ProbeFailure::Timeout(Duration::ZERO)),
            ("timeout", Outcome::ApiServerUnreachable, (true, true))
        );
        assert_eq!(
            class(ProbeFailure::Machines(String::new())),
            ("machines", Outcome::Inconclusive, (false, false)),
            "the seed failed"
        );
    }

    #[test]
    fn a_quote_is_short() {
        assert_eq!(quote("as it is"), "as it is");
        assert_eq!(quote(&"ä".repeat(100_000)).chars().count(), LONGEST_QUOTE + 1);
    }
}
