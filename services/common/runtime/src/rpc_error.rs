//! The errors of the gRPC APIs: a canonical code, a message that says what to do, and google.rpc details for programs.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// The domain of every [`ErrorReason`].
pub const DOMAIN: &str = "dependency-watchdog.gardener.cloud";

/// Why a request failed. The names are part of the API: docs/reference/api.md lists them, and clients compare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorReason {
    /// A field has a value that it cannot have.
    InvalidField,
    /// A page token was not issued by this API.
    InvalidPageToken,
    /// A page token belongs to a request with other fields.
    PageTokenMismatch,
    /// The seed has no Cluster of the name.
    ShootNotFound,
    /// The service has no weeder.
    WeederNotFound,
    /// The service is not watched.
    ServiceNotFound,
    /// No replica has reported the shoot yet.
    NotReported,
    /// Another process leads, or none does, and only the leader can answer.
    NotLeading,
    /// A stream began before the replica had all of its items, and ends when it has them.
    SnapshotIncomplete,
    /// The process stops.
    Draining,
    /// The replica serves as many streams as it can.
    TooManyStreams,
    /// The reader of a stream is too far behind.
    ReaderTooSlow,
    /// The caller's certificate is good, but its name is not allowed.
    ClientNotAllowed,
}

impl ErrorReason {
    /// As clients see it, with its code, and the seconds after which the same request may succeed.
    const fn parts(self) -> (&'static str, Code, Option<u64>) {
        match self {
            Self::InvalidField => ("INVALID_FIELD", Code::InvalidArgument, None),
            Self::InvalidPageToken => ("INVALID_PAGE_TOKEN", Code::InvalidArgument, None),
            Self::PageTokenMismatch => ("PAGE_TOKEN_MISMATCH", Code::InvalidArgument, None),
            Self::ShootNotFound => ("SHOOT_NOT_FOUND", Code::NotFound, None),
            Self::WeederNotFound => ("WEEDER_NOT_FOUND", Code::NotFound, None),
            Self::ServiceNotFound => ("SERVICE_NOT_FOUND", Code::NotFound, None),
            Self::NotReported => ("NOT_REPORTED", Code::Unavailable, Some(1)),
            Self::NotLeading => ("NOT_LEADING", Code::Unavailable, Some(10)),
            Self::SnapshotIncomplete => ("SNAPSHOT_INCOMPLETE", Code::Unavailable, Some(1)),
            Self::Draining => ("DRAINING", Code::Unavailable, Some(1)),
            Self::TooManyStreams => ("TOO_MANY_STREAMS", Code::ResourceExhausted, Some(10)),
            Self::ReaderTooSlow => ("READER_TOO_SLOW", Code::ResourceExhausted, Some(1)),
            Self::ClientNotAllowed => ("CLIENT_NOT_ALLOWED", Code::PermissionDenied, None),
        }
    }

    /// The error of this reason, with what else is known.
    fn status(self, message: impl Into<String>, add: impl FnOnce(&mut ErrorDetails)) -> Status {
        let (name, code, retry_seconds) = self.parts();
        let mut details = ErrorDetails::with_error_info(name, DOMAIN, []);
        if let Some(seconds) = retry_seconds {
            details.set_retry_info(Some(Duration::from_secs(seconds)));
        }
        add(&mut details);
        Status::with_error_details(code, message, details)
    }
}

/// The error for a request that is right, but cannot be answered.
#[must_use]
pub fn error(reason: ErrorReason, message: impl Into<String>) -> Status {
    reason.status(message, |_| {})
}

/// The error for a call or a stream that ends because this process stops.
#[must_use]
pub fn draining() -> Status {
    error(ErrorReason::Draining, "this replica is stopping: connect again")
}

/// The error for a field that is wrong. The message begins with the field.
#[must_use]
pub fn invalid(reason: ErrorReason, field: &str, description: &str) -> Status {
    reason.status(format!("{field}: {description}"), |details| {
        details.add_bad_request_violation(field, description);
    })
}

/// The error for a field that is wrong for the usual reason.
#[must_use]
pub fn invalid_field(field: &str, description: &str) -> Status {
    invalid(ErrorReason::InvalidField, field, description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_carry_their_details() {
        let status = invalid_field("shoots[1]", "is too long");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "shoots[1]: is too long");
        let details = status.get_error_details();
        let violation = &details.bad_request().unwrap().field_violations[0];
        assert_eq!(
            (violation.field.as_str(), violation.description.as_str()),
            ("shoots[1]", "is too long")
        );
        let info = details.error_info().unwrap();
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            ("INVALID_FIELD", DOMAIN)
        );
        assert!(details.retry_info().is_none(), "the same request fails again");

        let draining = draining();
        assert_eq!(draining.code(), Code::Unavailable);
        let retry = draining.get_error_details().retry_info().unwrap().retry_delay;
        assert_eq!(retry, Some(Duration::from_secs(1)));
    }
}
