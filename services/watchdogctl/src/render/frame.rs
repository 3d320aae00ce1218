//! The surroundings of a text, its form and its styles.

use clap::ValueEnum;
use jiff::Timestamp;

use super::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    Bold,
    Dim,
}

impl Style {
    /// The parameter of the escape sequence; none for plain text.
    const fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("32"),
            Self::Warn => Some("33"),
            Self::Bad => Some("31;1"),
            Self::Bold => Some("1"),
            Self::Dim => Some("2"),
        }
    }
}

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

    /// Time since a moment, and the moment: `2m10s (00:37:50Z)`; `-` when unset. A clock that runs ahead of this one
    /// shows as no time.
    pub(crate) fn since(&self, sent: Option<prost_types::Timestamp>) -> String {
        let passed = |at| text::duration(text::passed(at, self.now));
        let since = |at| format!("{} ({})", passed(at), text::clock(at, self.now));
        text::shown(text::timestamp(sent).map(since))
    }

    /// A part of an answer under its title.
    pub(crate) fn section(&self, title: &str, content: &str) -> String {
        format!("\n{}\n{content}", self.paint(Style::Bold, title))
    }
}
