//! The findings of checks.

use serde::Serialize;

use crate::error::CommandError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum Severity {
    #[serde(rename = "ok")]
    Fine,
    /// Worth a look; not wrong.
    #[serde(rename = "notice")]
    Notice,
    #[serde(rename = "WRONG")]
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CheckFinding {
    #[serde(rename = "result")]
    pub(crate) severity: Severity,
    /// The replica or program.
    pub(crate) subject: String,
    /// The thing that was looked at, for example `certificate`.
    #[serde(rename = "check")]
    pub(crate) what: &'static str,
    /// The result, and what to do.
    #[serde(rename = "found")]
    pub(crate) text: String,
}

impl CheckFinding {
    pub(crate) fn new(severity: Severity, subject: &str, what: &'static str, text: String) -> Self {
        Self {
            severity,
            subject: subject.to_owned(),
            what,
            text,
        }
    }

    /// Something could not be looked at.
    pub(crate) fn failed(subject: &str, what: &'static str, error: &CommandError) -> Self {
        Self::new(Severity::Wrong, subject, what, error.to_string())
    }
}
