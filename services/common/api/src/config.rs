//! Reading configuration files: all errors at once, each with its place.

mod reader;

pub use crate::config_error::ConfigError;
pub(crate) use reader::{Field, Section, Value, read};
pub use reader::{Parsed, UnknownFields};

use std::fmt;

/// Everything that is wrong in a configuration file, in the file's order, at least one error.
///
/// `Display` writes a line for each: `file:line:column: path: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    file: String,
    errors: Vec<ConfigError>,
}

// === impl ConfigErrors ===

impl ConfigErrors {
    pub(crate) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by_key(|error| (error.line, error.column));
        Self {
            file: "<config>".to_owned(),
            errors,
        }
    }

    /// Names the file, for [`Display`](fmt::Display).
    #[must_use]
    pub fn with_file(mut self, file: impl Into<String>) -> Self {
        self.file = file.into();
        self
    }

    /// All errors, a line each, without the name of a file.
    #[must_use]
    pub fn lines(&self) -> String {
        let lines: Vec<_> = self.errors.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    /// The errors, in the file's order.
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for error in &self.errors {
            write!(f, "{separator}{}:{error}", self.file)?;
            separator = "\n";
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
