//! Errors in a file, with their places: what the reader of YAML and the check of a configuration both report.

use crate::text::cut;
use std::fmt;

/// A longer key is quoted and cut: no field has such a name.
const LONGEST_NAME: usize = 100;

/// One error in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Line, from 1.
    pub line: u64,
    /// Column in characters, from 1.
    pub column: u64,
    /// The field, such as `dependentResourceInfos[0].ref.kind`; empty for the file as a whole.
    pub path: String,
    /// The fault, and the value that would be right.
    pub message: String,
}

/// All errors that were found in a file, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    file: String,
    errors: Vec<ConfigError>,
}

// === impl ConfigError ===

impl ConfigError {
    /// An unknown line and column are 0, and count as the begin of the file.
    pub(crate) fn new(
        (line, column): (u64, u64),
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            line: line.max(1),
            column: column.max(1),
            path: path.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
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

    /// The same errors of a file with this name.
    #[must_use]
    pub fn with_file(mut self, file: impl Into<String>) -> Self {
        self.file = file.into();
        self
    }

    /// The errors, sorted by place.
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }
}

impl fmt::Display for ConfigErrors {
    /// A line for each error, as compilers write them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self
            .errors
            .iter()
            .map(|error| format!("{}:{error}", self.file))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

// === paths ===

/// The path to a key below another path.
pub(crate) fn joined(path: &str, key: &str) -> String {
    let is_simple = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_name = (1..=LONGEST_NAME).contains(&key.len()) && key.chars().all(is_simple);
    match (path.is_empty(), is_name) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{:?}]", cut(key)),
    }
}

/// The path to an item of a list.
pub(crate) fn item_of(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
