//! State in, text out: pure functions. Time and width are arguments.

pub(crate) mod cells;
pub(crate) mod incident;
pub(crate) mod svg;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod text;

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::CommandError;
use table::Style;

/// The shape of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    /// A table with more columns.
    Wide,
    Json,
    Yaml,
    Markdown,
}

impl Format {
    /// True if it is for people.
    pub(crate) const fn is_text(self) -> bool {
        !matches!(self, Self::Json | Self::Yaml)
    }
}

/// Everything that rendering depends on besides the state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// The local wall clock.
    pub(crate) now: Timestamp,
    /// Columns of the terminal; none in a pipe, where nothing is cut.
    pub(crate) width: Option<usize>,
    /// Rows of the terminal, for a screen that is drawn again and again; none where all is shown.
    pub(crate) rows: Option<usize>,
    /// True if colours may be used.
    pub(crate) color: bool,
    pub(crate) format: Format,
}

impl Frame {
    /// Text as in a pipe.
    pub(crate) const fn plain(now: Timestamp) -> Self {
        Self {
            now,
            width: None,
            rows: None,
            color: false,
            format: Format::Table,
        }
    }

    /// A text in a style.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        match style.code() {
            Some(code) if self.color && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }

    /// True for a table with more columns.
    pub(crate) fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// A part of an answer under its title.
    pub(crate) fn section(&self, title: &str, content: &str) -> String {
        format!("\n{}\n{content}", self.paint(Style::Bold, title))
    }
}

/// The line about replicas whose items may be absent.
pub(crate) fn missing(missing: &[String], frame: &Frame) -> String {
    if missing.is_empty() {
        return String::new();
    }
    let text = format!(
        "INCOMPLETE: {} not reached; their items may be absent or out of date",
        missing.join(", ")
    );
    format!("{}\n", frame.paint(Style::Bad, &text))
}

/// A program or a seed that did not answer, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Unanswered {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<&'static str>,
    /// The context of a seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<String>,
    pub(crate) error: CommandError,
}

impl Unanswered {
    pub(crate) fn by(program: &'static str, error: CommandError) -> Self {
        Self {
            program: Some(program),
            context: None,
            error,
        }
    }
}

/// The lines about what did not answer. The advice for the same error is there once.
pub(crate) fn unanswered(all: &[Unanswered], frame: &Frame) -> String {
    let mut out = String::new();
    for (n, one) in all.iter().enumerate() {
        let from = one.program.or(one.context.as_deref()).unwrap_or_default();
        let line = format!("NO ANSWER from {from}: {}", one.error.what());
        out.push_str(&format!("{}\n", frame.paint(Style::Bad, &line)));
        if !all.iter().take(n).any(|before| before.error == one.error) {
            out.push_str(&format!("  {}\n", one.error.what_to_do()));
        }
    }
    out
}

/// The exit code when something did not answer: the highest of all errors.
pub(crate) fn code_of(unanswered: &[Unanswered]) -> u8 {
    let codes = unanswered.iter().map(|one| one.error.code);
    codes.max().unwrap_or_default()
}
