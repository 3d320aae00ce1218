//! The commands: they ask, and show the answer.

pub(crate) mod certificate;
pub(crate) mod check;
pub(crate) mod incidents;
pub(crate) mod lists;
pub(crate) mod plan;
pub(crate) mod release;
pub(crate) mod replicas;
pub(crate) mod report;
pub(crate) mod seeds;
pub(crate) mod shell;
pub(crate) mod shoot;
pub(crate) mod status;
pub(crate) mod ui;

use serde::Serialize;
use serde_json::Value;

use crate::error::{CommandError, CommandResult};
use crate::render::{Format, Frame};

/// An answer as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WrittenAnswer {
    /// A string, or for programs an object.
    content: Value,
    /// One line that says the most, for a table of several seeds.
    pub(crate) headline: String,
    /// The exit code.
    pub(crate) code: u8,
}

impl WrittenAnswer {
    /// The answer in the form that is asked for: `text` is for people, `value` for programs.
    ///
    /// # Errors
    /// When a message is not of the API: a defect of this program.
    pub(crate) fn of(frame: &Frame, text: String, value: impl Serialize) -> CommandResult<Self> {
        let content = if frame.format.is_text() {
            Value::String(text)
        } else {
            serde_json::to_value(value).map_err(defect)?
        };
        Ok(Self {
            content,
            headline: "answered".to_owned(),
            code: 0,
        })
    }

    /// The text for people.
    pub(crate) fn text(&self) -> &str {
        self.content.as_str().unwrap_or_default()
    }

    /// The text to print.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn printed(&self, format: Format) -> CommandResult<String> {
        let text = match format {
            Format::Yaml => serde_saphyr::to_string(&self.content).map_err(defect)?,
            Format::Json => serde_json::to_string_pretty(&self.content).map_err(defect)?,
            _ => return Ok(self.text().to_owned()),
        };
        Ok(format!("{}\n", text.trim_end()))
    }
}

fn defect(error: impl std::error::Error) -> CommandError {
    CommandError::unexpected(&error.to_string())
}
