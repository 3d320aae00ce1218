//! The log file of a child process.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// Lines of a log that are shown with an error: enough for the messages before a crash, short enough to read.
const TAIL_LINES: usize = 40;

/// One complete line of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogRecord<'a> {
    /// The line as written, without its end.
    pub text: &'a str,
}

impl LogRecord<'_> {
    /// A field of a JSON log line, as text: a string without its quotes, anything else as JSON. `None` when the line
    /// is not JSON or lacks the field.
    pub fn field(&self, name: &str) -> Option<String> {
        match serde_json::from_str::<Value>(self.text).ok()?.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// True if this is a JSON log line whose `message` is exactly this.
    pub fn is_message(&self, message: &str) -> bool {
        self.field("message").as_deref() == Some(message)
    }
}

/// Reads a log file that a child process is still writing, from its start, each line once.
#[derive(Debug)]
pub struct LogReader {
    file: BufReader<File>,
    /// The begin of a line whose end is not there yet.
    line: Vec<u8>,
}

impl LogReader {
    /// Starts at the beginning of the file.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("read {}", path.display()))?;
        Ok(Self {
            file: BufReader::new(file),
            line: Vec::new(),
        })
    }

    /// The first line since the last call for which `pick` gives a value; the lines before it are used up, those after
    /// it are not.
    pub fn find<T>(&mut self, mut pick: impl FnMut(LogRecord<'_>) -> Option<T>) -> anyhow::Result<Option<T>> {
        loop {
            self.file.read_until(b'\n', &mut self.line)?;
            if self.line.last() != Some(&b'\n') {
                return Ok(None);
            }
            let found = pick(LogRecord {
                text: String::from_utf8_lossy(&self.line).trim_end(),
            });
            self.line.clear();
            if found.is_some() {
                return Ok(found);
            }
        }
    }
}

/// The last lines of a log file, for an error message. Never fails: a file that cannot be read says so.
pub fn tail(path: &Path) -> String {
    match std::fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            lines
                .get(lines.len().saturating_sub(TAIL_LINES)..)
                .unwrap_or_default()
                .join("\n")
        }
        Err(error) => format!("(no log: {error})"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn every_line_is_seen_once_and_only_when_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        let mut reader = LogReader::new(&path).unwrap();
        let next = |reader: &mut LogReader| reader.find(|line| Some(line.text.to_owned())).unwrap();
        assert_eq!(next(&mut reader), None);

        write!(file, "one\ntwo\nthr").unwrap();
        assert_eq!(next(&mut reader).as_deref(), Some("one"));
        assert_eq!(next(&mut reader).as_deref(), Some("two"));
        assert_eq!(next(&mut reader), None);
        writeln!(file, "ee").unwrap();
        assert_eq!(next(&mut reader).as_deref(), Some("three"));
    }
}
