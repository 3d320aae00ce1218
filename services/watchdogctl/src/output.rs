//! Standard output: plain lines in a pipe, colour and updates in place on a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use crate::render::{Format, Frame};

/// Writes a line for a person to standard error. Nothing can be done when that is closed.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Columns and rows.
pub(crate) type TerminalSize = (usize, usize);

/// Where text goes.
pub(crate) struct Output {
    /// The size of the terminal now; none in a pipe.
    size: Box<dyn Fn() -> Option<TerminalSize> + Send + Sync>,
    color: bool,
    writer: Mutex<Box<dyn Write + Send>>,
}

impl Output {
    /// Standard output of the process. NO_COLOR turns colour off, whatever its value, unless that is empty.
    pub(crate) fn of_process() -> Self {
        let terminal = io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let color = terminal && !no_color && !dumb;
        Self::new(move || terminal.then(terminal_size), color, io::stdout())
    }

    /// A terminal whose size is asked for each time, or a pipe.
    pub(crate) fn new(
        size: impl Fn() -> Option<TerminalSize> + Send + Sync + 'static,
        color: bool,
        writer: impl Write + Send + 'static,
    ) -> Self {
        Self {
            size: Box::new(size),
            color,
            writer: Mutex::new(Box::new(writer)),
        }
    }

    /// The frame of what is rendered now.
    pub(crate) fn frame(&self, format: Format) -> Frame {
        Frame {
            format,
            now: Timestamp::now(),
            width: (self.size)().map(|(columns, _)| columns),
            color: self.color,
        }
    }

    /// Writes a text. False if nobody reads it: the text is dropped.
    pub(crate) fn print(&self, text: &str) -> bool {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .write_all(text.as_bytes())
            .and_then(|()| writer.flush())
            .is_ok()
    }
}

fn terminal_size() -> TerminalSize {
    let known = terminal_size::terminal_size();
    known.map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()))
}

/// A screen that is drawn again and again. What was on the terminal before comes back when it is dropped.
pub(crate) struct LiveScreen<'a> {
    output: &'a Output,
}

impl<'a> LiveScreen<'a> {
    /// None in a pipe, and for what programs read.
    pub(crate) fn open(output: &'a Output, format: Format) -> Option<Self> {
        (output.size)().filter(|_| format.is_text())?;
        // The alternate screen, without a cursor and without wrapping: one line is one row, cut by the terminal.
        output.print("\x1b[?1049h\x1b[?25l\x1b[?7l");
        Some(Self { output })
    }

    /// Replaces the screen. Lines end at the edge of the terminal. What does not fit is counted in the last one.
    pub(crate) fn draw(&self, text: &str) {
        let rows = (self.output.size)().map_or(usize::MAX, |(_, rows)| rows);
        let mut lines: Vec<&str> = text.lines().collect();
        let rest;
        if lines.len() > rows {
            let shown = rows.saturating_sub(1);
            rest = format!(
                "{} more lines, for which the terminal is too small",
                lines.len() - shown
            );
            lines.truncate(shown);
            lines.push(&rest);
        }
        // To the end of each line; the terminal is raw neither before nor after. A line break after the last one would
        // move a full screen.
        let screen = lines.join("\x1b[K\r\n");
        self.output.print(&format!("\x1b[H{screen}\x1b[K\x1b[J"));
    }
}

impl Drop for LiveScreen<'_> {
    fn drop(&mut self) {
        self.output.print("\x1b[?7h\x1b[?25h\x1b[?1049l");
    }
}
