//! An error in a file, with its place: what the reader of YAML and the reader of configurations both report.

use std::fmt;

/// A place in a file; both numbers start at 1, columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pos {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// One thing that is wrong in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Where in the structure, such as `dependentResourceInfos[1].scaleUp.level`; empty for the file as a whole.
    pub path: String,
    /// The error and, where it is not plain, what to write instead.
    pub message: String,
}

// === impl Pos ===

impl Pos {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

// === impl ConfigError ===

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl ConfigError {
    pub(crate) fn new(pos: Pos, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            line: pos.line,
            column: pos.column,
            path: path.into(),
            message: message.into(),
        }
    }
}
