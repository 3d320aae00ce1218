//! The commands: they ask, and have the answer rendered.

pub(crate) mod certificate;
pub(crate) mod check;
pub(crate) mod incidents;
pub(crate) mod plan;
pub(crate) mod release;
pub(crate) mod replicas;
pub(crate) mod report;
pub(crate) mod scaling;
pub(crate) mod seeds;
pub(crate) mod shell;
pub(crate) mod shoot;
pub(crate) mod status;
pub(crate) mod ui;
pub(crate) mod verdicts;
pub(crate) mod weeders;

use serde_json::Value;

use crate::args::Format;
use crate::error::CommandError;
use crate::render::{Frame, message};

/// How an answer is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) format: Format,
    pub(crate) frame: Frame,
}

impl Shape {
    /// True for programs.
    pub(crate) const fn is_structured(self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    pub(crate) fn is_wide(self) -> bool {
        self.format == Format::Wide
    }

    /// The answer in this shape.
    ///
    /// # Errors
    /// When a message is not of the API: a defect of this program.
    pub(crate) fn answer(
        self,
        value: impl FnOnce() -> anyhow::Result<Value>,
        text: impl FnOnce(&Frame) -> String,
    ) -> Result<CommandAnswer, CommandError> {
        if self.is_structured() {
            value()
                .map(CommandAnswer::of_value)
                .map_err(|error| defect(&error))
        } else {
            Ok(CommandAnswer::of_text(text(&self.frame)))
        }
    }

    /// The text to print.
    ///
    /// # Errors
    /// As [`Self::answer`].
    pub(crate) fn written(self, answer: CommandAnswer) -> Result<String, CommandError> {
        let write = match self.format {
            Format::Json => message::json,
            Format::Yaml => message::yaml,
            Format::Table | Format::Wide | Format::Markdown => return Ok(answer.into_text()),
        };
        write(&answer.into_value()).map_err(|error| defect(&error))
    }
}

fn defect(error: &anyhow::Error) -> CommandError {
    CommandError::unexpected(&format!("{error:#}"))
}

/// The findings of a command: for people or for programs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CommandAnswer {
    content: Content,
    /// One line that says the most, for a table of several seeds.
    pub(crate) headline: Option<String>,
    /// The exit code.
    pub(crate) code: u8,
}

#[derive(Debug, Clone, PartialEq)]
enum Content {
    Text(String),
    Value(Value),
}

impl CommandAnswer {
    pub(crate) const fn of_text(text: String) -> Self {
        Self {
            content: Content::Text(text),
            headline: None,
            code: 0,
        }
    }

    pub(crate) const fn of_value(value: Value) -> Self {
        Self {
            content: Content::Value(value),
            headline: None,
            code: 0,
        }
    }

    pub(crate) fn with_headline(self, headline: String) -> Self {
        Self {
            headline: Some(headline),
            ..self
        }
    }

    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    pub(crate) fn into_text(self) -> String {
        match self.content {
            Content::Text(text) => text,
            Content::Value(value) => value.to_string(),
        }
    }

    pub(crate) fn into_value(self) -> Value {
        match self.content {
            Content::Text(text) => Value::String(text),
            Content::Value(value) => value,
        }
    }
}
