//! Why a try failed: for the log, for /readyz and as a label of a metric.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

use strum::IntoStaticStr;
use watchdog_certificates::{Refusal, tls_error_in_words};

/// Longest text of a failure in characters. /readyz is read on a terminal.
const LONGEST_TEXT: usize = 500;

/// Why a try failed, as a label value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The object, its kind or its namespace does not exist.
    NotFound,
    /// A permission is missing.
    Forbidden,
    /// The server does not accept who this is: the token or the certificate has expired or is unknown.
    Unauthorized,
    /// A precondition did not hold.
    Conflict,
    /// The server asks for fewer requests.
    Throttled,
    /// The server failed.
    ServerError,
    /// The server refused the request for another reason.
    Rejected,
    /// A certificate is not trusted, has expired or cannot be used.
    Certificate,
    /// The server's certificate is for another name.
    ServerName,
    /// Nothing listens at the address.
    ConnectionRefused,
    /// There was no answer in time.
    Timeout,
    /// The name was not resolved, or the connection broke.
    Connection,
    /// This process, or its machine, has no file descriptor, memory or disk space left.
    LocalLimit,
    /// This process did not run in time.
    Stalled,
    /// Anything else.
    Other,
}

impl Reason {
    /// As a label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// From the status code of an HTTP answer.
    #[must_use]
    pub const fn of_http_status(code: u16) -> Self {
        match code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 | 410 => Self::NotFound,
            409 => Self::Conflict,
            408 | 504 => Self::Timeout,
            429 => Self::Throttled,
            500.. => Self::ServerError,
            _ => Self::Rejected,
        }
    }

    /// From an error that is no answer of a server, by what it came from.
    #[must_use]
    pub fn of_transport(error: &(dyn Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(reason) = known(error) {
                return reason;
            }
            next = error.source();
        }
        Self::Other
    }

    /// From the status of a gRPC call.
    #[must_use]
    pub fn of_grpc_status(status: &tonic::Status) -> Self {
        use tonic::Code;
        let transport = status.source().map(Self::of_transport);
        match (status.code(), transport) {
            (_, Some(reason)) if reason != Self::Other => reason,
            (Code::NotFound | Code::Unimplemented, _) => Self::NotFound,
            (Code::PermissionDenied, _) => Self::Forbidden,
            (Code::Unauthenticated, _) => Self::Unauthorized,
            (Code::Aborted | Code::AlreadyExists, _) => Self::Conflict,
            (Code::ResourceExhausted, _) => Self::Throttled,
            (Code::DeadlineExceeded, _) => Self::Timeout,
            // An answer of a server has no source: HTTP/2 broke on this side, for example on the TLS alert of a server.
            (Code::Unavailable | Code::Cancelled, _) | (Code::Internal | Code::Unknown, Some(_)) => {
                Self::Connection
            }
            (Code::Internal | Code::Unknown | Code::DataLoss, _) => Self::ServerError,
            (Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange, _) => Self::Rejected,
            (Code::Ok, _) => Self::Other,
        }
    }
}

/// Linux error numbers for a resource that the process or its machine has run out of: ENOMEM, ENFILE, EMFILE, ENOSPC
/// and ENOBUFS. EADDRNOTAVAIL is not among them: no port may be left, but the server's address may also be invalid.
const LOCAL_LIMITS: [i32; 5] = [12, 23, 24, 28, 105];

/// True if an operation failed because this process or its machine lacks a resource. That says nothing about the
/// server.
#[must_use]
pub fn is_local_limit(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|code| LOCAL_LIMITS.contains(&code))
}

/// Reads the reason from one link of a chain of errors.
fn known(error: &(dyn Error + 'static)) -> Option<Reason> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        // An error inside of another one is not its source.
        let inner = error.get_ref().map(|inner| Reason::of_transport(inner));
        return match (inner, error.kind()) {
            (Some(reason), _) if reason != Reason::Other => Some(reason),
            _ if is_local_limit(error) => Some(Reason::LocalLimit),
            (_, io::ErrorKind::ConnectionRefused) => Some(Reason::ConnectionRefused),
            (_, io::ErrorKind::TimedOut) => Some(Reason::Timeout),
            (
                _,
                io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::UnexpectedEof,
            ) => Some(Reason::Connection),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
        return Some(match error {
            rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
                Reason::ServerName
            }
            error if Refusal::of(error).is_some_and(Refusal::is_about_name) => Reason::ServerName,
            rustls::Error::InvalidCertificate(_)
            | rustls::Error::AlertReceived(_)
            | rustls::Error::NoCertificatesPresented => Reason::Certificate,
            _ => Reason::Connection,
        });
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        let broken = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
        return match error.source() {
            // Also pings without an answer.
            _ if error.is_timeout() => Some(Reason::Timeout),
            None if broken => Some(Reason::Connection),
            _ => None,
        };
    }
    error
        .is::<tokio::time::error::Elapsed>()
        .then_some(Reason::Timeout)
}

/// Why a try failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// As a label value.
    pub reason: Reason,
    /// The code of the gRPC status, if a gRPC call failed.
    pub code: Option<tonic::Code>,
    text: String,
}

impl Failure {
    /// The reason and the text of an error. The text must not hold a secret.
    #[must_use]
    pub fn new(reason: Reason, error: &dyn Display) -> Self {
        let text = error.to_string().chars().take(LONGEST_TEXT).collect();
        Self {
            reason,
            code: None,
            text,
        }
    }

    /// A gRPC call failed.
    #[must_use]
    pub fn of_grpc_status(status: &tonic::Status) -> Self {
        let mut text = chain(status);
        if status.code() == tonic::Code::Unimplemented {
            text.insert_str(0, "another program, or another release of it, listens there: ");
        }
        Self {
            code: Some(status.code()),
            ..Self::new(Reason::of_grpc_status(status), &text)
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error and what it came from, in one line of words: which stage failed, and whether the name, the certificate or a
/// closed port is the cause. Of a server's certificate that is refused, it is the refusal alone: that names the remedy.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let mut link = match error.downcast_ref::<tonic::Status>() {
            Some(status) => format!("{}: {}", status.code().description(), status.message()),
            None => error.to_string(),
        };
        if let Some(tls) = tls_within(error) {
            if let Some(refusal) = Refusal::of(tls) {
                return refusal.to_string();
            }
            // The errors around it may repeat its text.
            let words = tls_error_in_words(tls);
            text = text.replace(&link, &words);
            link = words;
        }
        if text.is_empty() {
            text = link;
        } else if !text.contains(&link) {
            text.push_str(": ");
            text.push_str(&link);
        }
        next = error.source();
    }
    text.replace(
        UNEXPECTED_END,
        "the other side closed the connection without a word",
    )
}

/// rustls sends people to its manual, which tells developers what to do.
const UNEXPECTED_END: &str = "peer closed connection without sending TLS close_notify: \
                              https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof";

/// The error of TLS that an error is, or that an I/O error holds.
fn tls_within<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => tls_within(error.get_ref()?),
        None => error.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_no_answer_of_the_server() {
        let mut broken = tonic::Status::internal("h2 protocol error");
        assert_eq!(Reason::of_grpc_status(&broken), Reason::ServerError);
        broken.set_source(std::sync::Arc::new(io::Error::other("frame with invalid size")));
        assert_eq!(Reason::of_grpc_status(&broken), Reason::Connection);
    }

    /// As it comes from the library that says it.
    #[test]
    fn a_connection_that_ends_in_the_middle_is_told_in_words() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let roots = rustls::RootCertStore::empty();
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
        client.read_tls(&mut io::empty()).unwrap();
        let end = io::Read::read(&mut client.reader(), &mut [0]).unwrap_err();
        assert_eq!(chain(&end), "the other side closed the connection without a word");
    }

    #[test]
    fn a_reason_is_found_inside_of_io_errors() {
        let name = rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidForName);
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let custom = |error: rustls::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        for (error, reason) in [
            (io::ErrorKind::ConnectionRefused.into(), Reason::ConnectionRefused),
            (io::ErrorKind::TimedOut.into(), Reason::Timeout),
            (io::Error::from_raw_os_error(12), Reason::LocalLimit),
            (io::Error::from_raw_os_error(24), Reason::LocalLimit),
            (
                io::Error::other(io::Error::from_raw_os_error(105)),
                Reason::LocalLimit,
            ),
            (io::ErrorKind::ConnectionReset.into(), Reason::Connection),
            (custom(name), Reason::ServerName),
            (custom(unknown), Reason::Certificate),
            (
                io::Error::other(custom(rustls::Error::NoCertificatesPresented)),
                Reason::Certificate,
            ),
            (io::Error::other("something else"), Reason::Other),
        ] {
            assert_eq!(Reason::of_transport(&error), reason, "{error:?}");
        }
    }

    #[test]
    fn a_status_of_http_or_grpc_has_one_reason() {
        use tonic::Code;
        for (reason, http, grpc) in [
            (
                Reason::NotFound,
                &[404, 410][..],
                &[Code::NotFound, Code::Unimplemented][..],
            ),
            (Reason::Forbidden, &[403], &[Code::PermissionDenied]),
            (Reason::Unauthorized, &[401], &[Code::Unauthenticated]),
            (Reason::Conflict, &[409], &[Code::Aborted, Code::AlreadyExists]),
            (Reason::Throttled, &[429], &[Code::ResourceExhausted]),
            (Reason::Timeout, &[408, 504], &[Code::DeadlineExceeded]),
            (
                Reason::ServerError,
                &[500, 503],
                &[Code::Internal, Code::Unknown, Code::DataLoss],
            ),
            (
                Reason::Rejected,
                &[400, 422],
                &[Code::InvalidArgument, Code::FailedPrecondition, Code::OutOfRange],
            ),
            (Reason::Connection, &[], &[Code::Unavailable, Code::Cancelled]),
        ] {
            for code in http {
                assert_eq!(Reason::of_http_status(*code), reason, "{code}");
            }
            for code in grpc {
                let failure = Failure::of_grpc_status(&tonic::Status::new(*code, "why"));
                assert_eq!((failure.reason, failure.code), (reason, Some(*code)));
            }
        }
    }

    /// Such a server says nothing itself.
    #[test]
    fn the_address_of_another_program_is_named_as_such() {
        let failure = Failure::of_grpc_status(&tonic::Status::unimplemented(""));
        assert!(failure.to_string().starts_with("another program, "), "{failure}");
    }

    #[test]
    fn an_error_of_tls_is_shown_in_words_once_wherever_it_is() {
        let inner = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let tls = io::Error::new(io::ErrorKind::InvalidData, inner);
        // As tonic makes it of a connection that fails.
        let mut status = tonic::Status::unavailable(tls.to_string());
        status.set_source(std::sync::Arc::new(tls));
        let words = "The service is currently unavailable: invalid peer certificate: unknown issuer";
        assert_eq!(Failure::of_grpc_status(&status).to_string(), words);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_of_this_process_is_a_timeout() {
        let limit = std::time::Duration::from_secs(1);
        let elapsed = tokio::time::timeout(limit, std::future::pending::<()>()).await;
        assert_eq!(Reason::of_transport(&elapsed.unwrap_err()), Reason::Timeout);
    }

    #[test]
    fn texts_are_bounded() {
        let failure = Failure::new(Reason::Other, &"x".repeat(10_000));
        assert_eq!(failure.to_string().len(), LONGEST_TEXT);
    }
}
