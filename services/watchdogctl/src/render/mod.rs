//! State in, text out: pure functions. Time and width are arguments.

pub(crate) mod check;
pub(crate) mod incident;
pub(crate) mod incidents;
pub(crate) mod message;
pub(crate) mod plan;
pub(crate) mod pods;
pub(crate) mod replicas;
pub(crate) mod report;
pub(crate) mod scaling;
pub(crate) mod shoot;
pub(crate) mod status;
pub(crate) mod svg;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod text;
pub(crate) mod verdicts;
pub(crate) mod weeders;

use jiff::Timestamp;

use table::Style;

/// Everything that rendering depends on besides the state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// The local wall clock.
    pub(crate) now: Timestamp,
    /// Columns of the terminal; none in a pipe, where nothing is cut.
    pub(crate) width: Option<usize>,
    /// True if colours may be used.
    pub(crate) color: bool,
}

impl Frame {
    /// A text in a style.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        match style.code() {
            Some(code) if self.color && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// The lines about replicas whose items may be absent.
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
