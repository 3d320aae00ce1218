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

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::error::CommandError;
use crate::render::{Format, Frame};

/// The findings of a command. Serialized, they are the answer for programs.
pub(crate) trait CommandAnswer: Serialize {
    /// The answer for people.
    fn text(&self, frame: &Frame) -> String;

    /// One line that says the most, for a table of several seeds.
    fn headline(&self, _: &Frame) -> String {
        "answered".to_owned()
    }

    /// The exit code.
    fn code(&self) -> u8 {
        0
    }
}

/// An answer as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WrittenAnswer {
    /// A string, or for programs an object.
    content: Value,
    pub(crate) headline: String,
    pub(crate) code: u8,
}

impl WrittenAnswer {
    /// # Errors
    /// When a message is not of the API: a defect of this program.
    pub(crate) fn new(answer: &impl CommandAnswer, frame: &Frame) -> Result<Self, CommandError> {
        let content = if frame.format.is_text() {
            Value::String(answer.text(frame))
        } else {
            serde_json::to_value(answer).map_err(defect)?
        };
        let plain = Frame {
            color: false,
            ..*frame
        };
        Ok(Self {
            content,
            headline: answer.headline(&plain),
            code: answer.code(),
        })
    }

    /// An answer that is there in both forms.
    pub(crate) fn of(frame: &Frame, text: String, value: Value) -> Self {
        Self {
            content: if frame.format.is_text() {
                text.into()
            } else {
                value
            },
            headline: "answered".to_owned(),
            code: 0,
        }
    }

    /// The text for people.
    pub(crate) fn text(&self) -> &str {
        self.content.as_str().unwrap_or_default()
    }

    /// The text to print.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn printed(&self, format: Format) -> Result<String, CommandError> {
        let text = match format {
            Format::Yaml => serde_saphyr::to_string(&self.content).map_err(defect)?,
            Format::Json => serde_json::to_string_pretty(&self.content).map_err(defect)?,
            _ => return Ok(self.text().to_owned()),
        };
        Ok(format!("{}\n", text.trim_end()))
    }
}

impl Serialize for WrittenAnswer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.content.serialize(serializer)
    }
}

fn defect(error: impl std::error::Error) -> CommandError {
    CommandError::unexpected(&error.to_string())
}
