//! State in, text out: pure functions. Time and width are arguments.

pub(crate) mod cells;
mod frame;
pub(crate) mod incident;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod text;

use std::collections::BTreeSet;

use serde::Serialize;
use watchdog_proto::stream::v1::Completeness;

use crate::error::{CommandError, CommandResult};
use crate::program::Program;
pub(crate) use frame::{Format, Frame, Style};

/// Lines in which nothing is markup, whatever a program sends: Markdown takes indented lines as they are.
pub(crate) fn code_block(lines: &str) -> String {
    lines.lines().map(|line| format!("    {line}\n")).collect()
}

/// The line about replicas whose items an answer may lack.
pub(crate) fn incomplete(program: Program, found: Option<&Completeness>, frame: &Frame) -> String {
    let mut gaps = AnswerGaps::default();
    gaps.add_missing(program, found);
    gaps.lines(frame)
}

/// The parts that an answer lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AnswerGaps {
    /// Replicas whose items may be absent.
    pub(crate) missing_replicas: BTreeSet<String>,
    pub(crate) unanswered: Vec<Unanswered>,
}

/// A program that did not answer, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Unanswered {
    program: &'static str,
    #[serde(flatten)]
    error: CommandError,
}

impl AnswerGaps {
    /// The answer of a program, or none, which is noted.
    pub(crate) fn answered<T>(&mut self, program: &'static str, answer: CommandResult<T>) -> Option<T> {
        let note = |error| self.unanswered.push(Unanswered { program, error });
        answer.map_err(note).ok()
    }

    /// Adds the replicas that an answer misses.
    pub(crate) fn add_missing(&mut self, program: Program, found: Option<&Completeness>) {
        self.missing_replicas
            .extend(text::missing_replicas(program, found));
    }

    /// The number of programs and replicas without an answer.
    pub(crate) fn count(&self) -> usize {
        self.missing_replicas.len() + self.unanswered.len()
    }

    pub(crate) fn lacks(&self, program: Program) -> bool {
        let mut unanswered = self.unanswered.iter();
        unanswered.any(|one| one.program == program.as_str())
    }

    /// The advice for the same error is there once.
    pub(crate) fn lines(&self, frame: &Frame) -> String {
        let mut out = String::new();
        if !self.missing_replicas.is_empty() {
            let missing: Vec<&str> = self.missing_replicas.iter().map(String::as_str).collect();
            let missing = missing.join(", ");
            let line = format!("INCOMPLETE: {missing} not reached; their items may be absent or out of date");
            out.push_str(&format!("{}\n", frame.paint(Style::Bad, &line)));
        }
        for (n, one) in self.unanswered.iter().enumerate() {
            let line = format!("NO ANSWER from {}: {}", one.program, one.error.what);
            out.push_str(&format!("{}\n", frame.paint(Style::Bad, &line)));
            let mut before = self.unanswered.iter().take(n);
            if !before.any(|before| before.error == one.error) {
                out.push_str(&format!("  {}\n", one.error.what_to_do));
            }
        }
        out
    }

    /// The exit code: the highest of all errors.
    pub(crate) fn code(&self) -> u8 {
        let codes = self.unanswered.iter().map(|one| one.error.code);
        codes.max().unwrap_or_default()
    }
}
