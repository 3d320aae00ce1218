//! Errors of commands: the cause, what to do, and the exit code of the process.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

use serde::Serialize;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use watchdog_api::text;
use watchdog_client::failure::{Failure, Reason};

/// Something is wrong: a check failed, a shoot is unknown, a request was refused.
pub(crate) const WRONG: u8 = 1;
/// An option or a file is wrong.
pub(crate) const USAGE: u8 = 2;
/// A program cannot be reached.
pub(crate) const UNREACHABLE: u8 = 3;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CommandError {
    /// The exit code of the process.
    #[serde(skip)]
    pub(crate) code: u8,
    /// The cause.
    #[serde(rename = "error")]
    pub(crate) what: String,
    #[serde(rename = "advice")]
    pub(crate) what_to_do: String,
}

/// The answer of a command, or why it failed.
pub(crate) type CommandResult<T> = Result<T, CommandError>;

impl CommandError {
    pub(crate) fn usage(what: impl Into<String>, what_to_do: impl Into<String>) -> Self {
        Self::new(USAGE, what, what_to_do)
    }

    pub(crate) fn unreachable(what: impl Into<String>, what_to_do: impl Into<String>) -> Self {
        Self::new(UNREACHABLE, what, what_to_do)
    }

    pub(crate) fn wrong(what: impl Into<String>, what_to_do: impl Into<String>) -> Self {
        Self::new(WRONG, what, what_to_do)
    }

    fn new(code: u8, what: impl Into<String>, what_to_do: impl Into<String>) -> Self {
        Self {
            code,
            // It may quote what a program sent.
            what: text::printable(&what.into()),
            what_to_do: what_to_do.into(),
        }
    }

    /// An answer is not what the API says: a defect.
    pub(crate) fn unexpected(what: &str) -> Self {
        Self::new(
            WRONG,
            what,
            "this is a defect of watchdogctl or of the program: report it",
        )
    }

    /// A call to `program` failed.
    pub(crate) fn of_status(program: &str, status: &Status) -> Self {
        if let Some(own) = Self::within(status) {
            return Self::new(
                own.code,
                format!("{program}: {}", own.what),
                own.what_to_do.clone(),
            );
        }
        let failure = Failure::of_grpc_status(status);
        let what = format!("{program}: {failure}");
        match status.code() {
            Code::NotFound => Self::new(
                WRONG,
                what,
                "watchdogctl verdicts lists the shoots that are known; write the namespace of the shoot, for example \
                 shoot--core--crazy",
            ),
            Code::Unimplemented => Self::new(
                WRONG,
                what,
                "correct the address, or use the watchdogctl of the program's release",
            ),
            _ => match status.get_details_retry_info().and_then(|info| info.retry_delay) {
                // The program itself has answered.
                Some(delay) => {
                    let seconds = delay.as_secs();
                    Self::new(UNREACHABLE, what, format!("try again in {seconds} s"))
                }
                None => Self::of_failure(program, &failure),
            },
        }
    }

    /// The error of this program that a connection failed with.
    fn within(status: &Status) -> Option<&Self> {
        let mut next = status.source();
        while let Some(error) = next {
            let inner = error.downcast_ref().and_then(io::Error::get_ref);
            if let Some(own) = inner.and_then(|inner| inner.downcast_ref()) {
                return Some(own);
            }
            next = error.source();
        }
        None
    }

    /// A stream of `program` was lost or could not be opened.
    pub(crate) fn of_failure(program: &str, failure: &Failure) -> Self {
        let what_to_do = match failure.reason {
            Reason::Rejected => {
                return Self::wrong(
                    format!("{program}: {failure}"),
                    "correct the option that the message names",
                );
            }
            Reason::ConnectionRefused => {
                "nothing listens there: correct the address, or leave it out and let watchdogctl forward a port \
                 through the API server of the seed"
            }
            Reason::ServerName => {
                "the program's certificate is for another name: set --tls-server-name to a name in it, or --name and \
                 --namespace to those of the release"
            }
            Reason::Certificate => {
                "--tls-ca must have signed the program's certificate, and the authority of the programs yours, which \
                 must not have expired and must have the extended key usage clientAuth, or none"
            }
            Reason::Forbidden | Reason::Unauthorized => {
                "the program rejects your certificate: use one with a name among its --tls-allowed-client"
            }
            Reason::Timeout => "the program does not answer: check its Pods with kubectl, then try again",
            Reason::LocalLimit => {
                "this machine has no file descriptor or memory left for a connection: close something, then try again"
            }
            Reason::Throttled => "the replica serves too many streams: close pages and streams, or try again",
            Reason::Connection => {
                "the connection broke. Check the address. If the program serves without TLS, add \
                 --insecure-plaintext; if it serves with TLS, leave that out"
            }
            _ => "try again; the log of the program may say more",
        };
        Self::new(UNREACHABLE, format!("{program}: {failure}"), what_to_do)
    }
}

impl Display for CommandError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\n  {}", self.what, self.what_to_do)
    }
}

impl Error for CommandError {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn the_code_and_the_advice_follow_from_the_status() {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(10)));
        let standby = Status::with_error_details(Code::Unavailable, "none leads", details);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        // So a program answers a certificate that is only for servers.
        let wrong_usage = rustls::Error::AlertReceived(rustls::AlertDescription::UnsupportedCertificate);
        let within = io::Error::other(CommandError::usage("a right is missing", "get it"));
        for (status, code, advice) in [
            (
                Status::not_found("no Cluster"),
                WRONG,
                "verdicts lists the shoots",
            ),
            (
                Status::invalid_argument("page_token"),
                WRONG,
                "correct the option",
            ),
            (
                Status::unimplemented("no such method"),
                WRONG,
                "correct the address",
            ),
            (
                Status::unavailable("draining"),
                UNREACHABLE,
                "the connection broke",
            ),
            (standby, UNREACHABLE, "try again in 10 s"),
            (
                Status::unauthenticated("who"),
                UNREACHABLE,
                "--tls-allowed-client",
            ),
            (
                Status::permission_denied("you"),
                UNREACHABLE,
                "--tls-allowed-client",
            ),
            (
                Status::deadline_exceeded("slow"),
                UNREACHABLE,
                "check its Pods with kubectl",
            ),
            (
                Status::resource_exhausted("full"),
                UNREACHABLE,
                "serves too many streams",
            ),
            (Status::internal("bug"), UNREACHABLE, "the log of the program"),
            (
                Status::from_error(Box::new(refused)),
                UNREACHABLE,
                "nothing listens there",
            ),
            (Status::from_error(Box::new(within)), USAGE, "get it"),
            (
                Status::from_error(Box::new(wrong_usage)),
                UNREACHABLE,
                "must have the extended key usage clientAuth",
            ),
        ] {
            let error = CommandError::of_status("weeder at a:1", &status);
            assert_eq!(error.code, code, "{error}");
            assert!(error.what.starts_with("weeder at a:1: "), "{error}");
            assert!(error.what_to_do.contains(advice), "{error}");
        }
    }
}
