//! Tables: columns as wide as their content, the last one cut where the terminal ends.

use super::Frame;

/// Between two columns.
const GAP: usize = 2;

/// The last column keeps this width on a terminal, however narrow that is.
const NARROWEST: usize = 12;

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
    pub(crate) const fn code(self) -> Option<&'static str> {
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

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(style: Style, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            style,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(Style::Plain, text)
    }
}

/// Rows under a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextTable {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

impl TextTable {
    pub(crate) fn new(header: impl Into<Vec<&'static str>>) -> Self {
        Self {
            header: header.into(),
            rows: Vec::new(),
            indent: 0,
        }
    }

    /// Begins each line with blanks.
    pub(crate) const fn indented(mut self, by: usize) -> Self {
        self.indent = by;
        self
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, each with its end.
    pub(crate) fn render(&self, frame: &Frame) -> String {
        let header: Vec<Cell> = self
            .header
            .iter()
            .map(|name| Cell::styled(Style::Bold, *name))
            .collect();
        let lines: Vec<&[Cell]> = std::iter::once(header.as_slice())
            .chain(self.rows.iter().map(Vec::as_slice))
            .collect();
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = lines.iter().filter_map(|line| line.get(column));
                cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
            })
            .collect();
        lines.iter().map(|line| self.line(line, &widths, frame)).collect()
    }

    fn line(&self, cells: &[Cell], widths: &[usize], frame: &Frame) -> String {
        let mut line = " ".repeat(self.indent);
        let mut column = self.indent;
        let last = cells.len().saturating_sub(1);
        for (n, (cell, width)) in cells.iter().zip(widths).enumerate() {
            if n == last {
                let left = frame.width.map(|all| all.saturating_sub(column).max(NARROWEST));
                line.push_str(&frame.paint(cell.style, &cut(&cell.text, left)));
            } else {
                line.push_str(&frame.paint(cell.style, &cell.text));
                let blanks = (width + GAP).saturating_sub(cell.text.chars().count());
                line.push_str(&" ".repeat(blanks));
                column += width + GAP;
            }
        }
        format!("{}\n", line.trim_end())
    }
}

/// A text of at most `width` characters.
pub(crate) fn cut(text: &str, width: Option<usize>) -> String {
    // A line of its own for each row, whatever a program sends.
    let text = text.replace(['\n', '\r', '\t', '\x1b'], " ");
    match width {
        Some(width) if text.chars().count() > width => {
            let kept: String = text.chars().take(width.saturating_sub(1)).collect();
            format!("{kept}…")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn table() -> TextTable {
        let mut table = TextTable::new(["SHOOT", "WHY"]);
        table.row(["shoot--a--b".into(), "a long sentence".into()]);
        table.row([Cell::styled(Style::Bad, "c"), "short".into()]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_content_and_nothing_is_cut_in_a_pipe() {
        assert_eq!(
            table().render(&testing::pipe()),
            "SHOOT        WHY\nshoot--a--b  a long sentence\nc            short\n"
        );
    }

    #[test]
    fn the_last_column_ends_with_the_terminal() {
        let narrow = Frame {
            width: Some(25),
            ..testing::pipe()
        };
        let text = table().render(&narrow);
        assert!(text.contains("shoot--a--b  a long sent…\n"), "{text}");
    }

    #[test]
    fn colour_does_not_move_columns() {
        let colored = Frame {
            color: true,
            ..testing::pipe()
        };
        let text = table().render(&colored);
        assert!(text.contains("\x1b[31;1mc\x1b[0m            short\n"), "{text:?}");
    }

    #[test]
    fn a_text_from_elsewhere_cannot_steer_the_terminal() {
        assert_eq!(cut("a\x1b[2J\nb", None), "a [2J b");
    }
}
