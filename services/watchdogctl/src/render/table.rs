//! Tables: columns as wide as their content, the last one cut where the terminal ends.

use super::frame::{Frame, Style};

/// Between two columns.
const GAP: usize = 2;

/// The last column keeps this width on a terminal, however narrow that is.
const NARROWEST: usize = 12;

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

/// Rows, column by column.
#[derive(Debug, Clone)]
pub(crate) struct TextTable<T> {
    rows: Vec<T>,
    /// The cells of each column, under its name.
    columns: Vec<(&'static str, Vec<Cell>)>,
    indent: usize,
}

impl<T> TextTable<T> {
    /// A table with a line for each row.
    pub(crate) fn of(rows: impl IntoIterator<Item = T>) -> Self {
        Self {
            rows: rows.into_iter().collect(),
            columns: Vec::new(),
            indent: 0,
        }
    }

    /// Begins each line with blanks.
    pub(crate) fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Adds a column.
    pub(crate) fn column<C: Into<Cell>>(mut self, name: &'static str, cell: impl Fn(&T) -> C) -> Self {
        let cells = self.rows.iter().map(|row| cell(row).into());
        self.columns.push((name, cells.collect()));
        self
    }

    /// Adds a column where it is shown.
    pub(crate) fn column_if<C: Into<Cell>>(
        self,
        is_shown: bool,
        name: &'static str,
        cell: impl Fn(&T) -> C,
    ) -> Self {
        if is_shown { self.column(name, cell) } else { self }
    }

    /// The lines, each with its end.
    pub(crate) fn render(&self, frame: &Frame) -> String {
        let mut lines = vec![" ".repeat(self.indent); self.rows.len() + 1];
        let mut start = self.indent;
        let last = self.columns.len().saturating_sub(1);
        for (n, (name, cells)) in self.columns.iter().enumerate() {
            let header = Cell::styled(Style::Bold, *name);
            let cells: Vec<&Cell> = std::iter::once(&header).chain(cells).collect();
            let left = frame.width.map(|all| all.saturating_sub(start).max(NARROWEST));
            let widths = cells.iter().map(|cell| cell.text.chars().count());
            let width = widths.max().unwrap_or(0) + GAP;
            for (line, cell) in lines.iter_mut().zip(cells) {
                if n == last {
                    line.push_str(&frame.paint(cell.style, &cut(&cell.text, left)));
                } else {
                    line.push_str(&frame.paint(cell.style, &cell.text));
                    line.push_str(&" ".repeat(width - cell.text.chars().count()));
                }
            }
            start += width;
        }
        lines
            .iter()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect()
    }

    /// The lines after others, or nothing without a row.
    pub(crate) fn after(&self, lead: &str, frame: &Frame) -> String {
        if self.rows.is_empty() {
            String::new()
        } else {
            format!("{lead}{}", self.render(frame))
        }
    }
}

/// A text of at most `width` characters.
pub(crate) fn cut(text: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if text.chars().count() > width => {
            let kept: String = text.chars().take(width.saturating_sub(1)).collect();
            format!("{kept}…")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn table() -> TextTable<(Style, &'static str, &'static str)> {
        let rows = [
            (Style::Plain, "shoot--a--b", "a long sentence"),
            (Style::Bad, "c", "short"),
        ];
        TextTable::of(rows)
            .column("SHOOT", |(style, shoot, _)| Cell::styled(*style, *shoot))
            .column("WHY", |(_, _, why)| (*why).to_owned())
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
}
