//! The findings of checks.

use serde::Serialize;

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

impl Severity {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Notice => "notice",
            Self::Wrong => "WRONG",
        }
    }
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
    pub(crate) fn new(
        severity: Severity,
        subject: &str,
        what: &'static str,
        text: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            subject: subject.to_owned(),
            what,
            text: text.into(),
        }
    }

    pub(crate) fn fine(subject: &str, what: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Fine, subject, what, text)
    }

    pub(crate) fn notice(subject: &str, what: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Notice, subject, what, text)
    }

    pub(crate) fn wrong(subject: &str, what: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Wrong, subject, what, text)
    }
}
