//! The possible outcomes of a probe.

use std::time::Duration;

use watchdog_api::eligibility::SkipReason;

/// The outcome of the last probe of a shoot.
#[derive(Debug, Clone, PartialEq, Eq)]
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
pub enum Permission {
    /// For every probe.
    ListLeases,
    /// When a lease looks expired.
    ListNodes,
}

impl Permission {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::ListLeases, Self::ListNodes];

    /// For people, and as a label value: a closed set.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ListLeases => "list leases in namespace kube-node-lease",
            Self::ListNodes => "list nodes",
        }
    }
}

/// Why a request to a shoot's API server gave no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The kubeconfig is missing or cannot be used.
    Kubeconfig(String),
    /// The name does not resolve, nobody listens, or the connection broke.
    Connect(String),
    /// The TLS handshake failed: wrong authority, wrong name, expired certificate.
    Tls(String),
    /// The list and GET /version both failed: an API server that fails all requests, or something else in its place.
    VersionFailed(String),
    /// No answer in time, not even to GET /version.
    Timeout(Duration),
    /// The API server was not asked: for this long the request waited in this process for a permit to open a connection.
    ConnectQueueTimeout(Duration),
    /// 429, with the wait that the server asks for, if any.
    Throttled(Option<Duration>),
    /// 401: the token or the client certificate is not accepted (any more).
    Unauthorized,
    /// 403: the permissions that are missing, the one that was refused first.
    Forbidden(Vec<Permission>),
    /// The server lives but could not list: its status code and message, or an answer that is no list.
    ListFailed(String),
    /// The list began well and broke off at a later page: what is known is not all.
    ListBrokeOff(String),
    /// The server lives but did not list in time.
    ListTimeout(Duration),
    /// The machines could not be listed on the seed.
    Machines(String),
    /// The seed's API server answered 429 to the list of the machines, with the wait that it asks for, if any.
    MachinesThrottled(Option<Duration>),
}

/// The evidence that a failure gives about whether kubelets could renew their leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureEvidence {
    /// The API server may have been away for a while.
    Away,
    /// The same, and connections to it were closed or refused.
    Disconnected,
    /// The same, and connections to it may have died without a sign.
    Silent,
    /// The API server answers, and may also throttle kubelets.
    Throttles,
    /// Nothing.
    None,
}

impl Failure {
    /// The outcome of a probe that failed this way. It never leads to a scale-down.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Connect(_) | Self::Tls(_) | Self::VersionFailed(_) | Self::Timeout(_) => {
                Outcome::ApiServerUnreachable
            }
            Self::Throttled(_) => Outcome::Throttled,
            Self::Kubeconfig(_)
            | Self::ConnectQueueTimeout(_)
            | Self::Unauthorized
            | Self::Forbidden(_)
            | Self::ListFailed(_)
            | Self::ListBrokeOff(_)
            | Self::ListTimeout(_)
            | Self::Machines(_)
            | Self::MachinesThrottled(_) => Outcome::Inconclusive,
        }
    }

    /// Returns true if the API server of the shoot or of the seed answered 429. The prober then pauses.
    #[must_use]
    pub const fn is_throttled(&self) -> bool {
        matches!(self, Self::Throttled(_) | Self::MachinesThrottled(_))
    }

    /// The evidence that this failure gives about whether kubelets could renew their leases.
    #[must_use]
    pub const fn evidence(&self) -> FailureEvidence {
        match self {
            Self::Timeout(_) | Self::ListTimeout(_) => FailureEvidence::Silent,
            Self::Connect(_) | Self::Tls(_) => FailureEvidence::Disconnected,
            Self::VersionFailed(_) | Self::ListFailed(_) | Self::ListBrokeOff(_) => FailureEvidence::Away,
            Self::Throttled(_) => FailureEvidence::Throttles,
            // Of lease-probe's own affairs, or those of the seed.
            Self::Kubeconfig(_)
            | Self::ConnectQueueTimeout(_)
            | Self::Unauthorized
            | Self::Forbidden(_)
            | Self::Machines(_)
            | Self::MachinesThrottled(_) => FailureEvidence::None,
        }
    }

    /// As a label value: a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Kubeconfig(_) => "kubeconfig",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::VersionFailed(_) => "version_failed",
            Self::Timeout(_) => "timeout",
            Self::ConnectQueueTimeout(_) => "connect_queue_timeout",
            Self::Throttled(_) => "throttled",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::ListFailed(_) => "list_failed",
            Self::ListBrokeOff(_) => "list_broke_off",
            Self::ListTimeout(_) => "list_timeout",
            Self::Machines(_) => "machines",
            Self::MachinesThrottled(_) => "machines_throttled",
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kubeconfig(why) => write!(f, "The kubeconfig cannot be used: {why}."),
            Self::Connect(why) => write!(f, "The API server cannot be reached: {why}."),
            Self::Tls(why) => write!(f, "The TLS handshake with the API server failed: {why}."),
            Self::VersionFailed(why) => write!(f, "The API server fails every request, or something else answers in its place: {why}."),
            Self::Timeout(limit) => {
                write!(f, "The API server did not answer within {}.", watchdog_api::duration::format(*limit))
            }
            Self::ConnectQueueTimeout(limit) => write!(
                f,
                "The API server was not asked: the request waited for {} until this replica could open a connection.",
                watchdog_api::duration::format(*limit)
            ),
            Self::Throttled(wait) => write!(f, "The API server throttles (429){}.", Asked(*wait)),
            Self::Unauthorized => f.write_str(
                "The API server does not accept the credentials of the kubeconfig (401): they may have expired.",
            ),
            Self::Forbidden(missing) => {
                let names: Vec<&str> = missing.iter().map(|permission| permission.as_str()).collect();
                write!(f, "The kubeconfig's user lacks a permission (403): {}.", names.join("; "))
            }
            Self::ListFailed(why) => write!(f, "The API server answers, but the list failed: {why}."),
            Self::ListBrokeOff(why) => {
                write!(f, "The API server answers, but the list broke off half way: {why}.")
            }
            Self::ListTimeout(limit) => write!(
                f,
                "The API server answers, but the list took longer than {}.",
                watchdog_api::duration::format(*limit)
            ),
            Self::Machines(why) => write!(f, "The machines cannot be listed on the seed: {why}."),
            Self::MachinesThrottled(wait) => {
                write!(f, "The machines cannot be listed on the seed: it throttles (429){}.", Asked(*wait))
            }
        }
    }
}

/// Displays the wait that a 429 asks for, if any.
struct Asked(Option<Duration>);

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(wait) => write!(
                f,
                " and asks to wait for {}",
                watchdog_api::duration::format(wait)
            ),
            None => Ok(()),
        }
    }
}
