//! One command on one seed or on several, side by side.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use serde_json::{Value, json};

use super::WrittenAnswer;
use crate::args::ConnectArgs;
use crate::connect::ProgramDialer;
use crate::connect::seeds::SeedConnection;
use crate::error::{CommandError, CommandResult};
use crate::render::table::{Cell, TextTable};
use crate::render::{Format, Frame, Style, code_block};

/// A seed answers within this time, or the others are shown without it.
const SEED_TIMEOUT: Duration = Duration::from_secs(60);

/// Seeds that are asked at the same time: each has a few connections.
const AT_ONCE: usize = 32;

/// The answer of one seed.
#[derive(Debug, Clone)]
pub(crate) struct SeedAnswer {
    /// The context; empty if only one seed was asked.
    pub(crate) seed: String,
    pub(crate) result: CommandResult<WrittenAnswer>,
}

/// Asks each seed that the options name.
///
/// # Errors
/// When the kubeconfig cannot be used or, of one seed, when that does not answer.
pub(crate) async fn ask_each(
    connect: &ConnectArgs,
    frame: &Frame,
    ask: impl AsyncFn(ProgramDialer) -> CommandResult<WrittenAnswer>,
) -> CommandResult<WrittenAnswer> {
    let asked = SeedConnection::each(connect)?.into_iter().map(|mut seed| {
        let ask = &ask;
        async move {
            let asked = async { ask(seed.dialer().await?).await };
            let answered = tokio::time::timeout(SEED_TIMEOUT, asked).await;
            let result = answered.unwrap_or_else(|_| {
                Err(CommandError::unreachable(
                    "the seed does not answer within 60 s",
                    "check the connection to the API server of the seed, and the Pods of the watchdog with kubectl",
                ))
            });
            SeedAnswer {
                seed: seed.name,
                result,
            }
        }
    });
    side_by_side(stream::iter(asked).buffered(AT_ONCE).collect().await, frame)
}

impl SeedAnswer {
    fn code(&self) -> u8 {
        match &self.result {
            Ok(answer) => answer.code,
            Err(error) => error.code,
        }
    }

    fn value(&self) -> Value {
        match &self.result {
            Ok(answer) => json!({"context": self.seed, "answer": answer.content}),
            Err(error) => json!({"context": self.seed, "error": error.what, "advice": error.what_to_do}),
        }
    }

    /// Its part of an answer for people.
    fn section(&self, frame: &Frame) -> String {
        let is_document = frame.format == Format::Markdown;
        let content = match &self.result {
            Ok(answer) => answer.text().to_owned(),
            Err(error) if is_document => code_block(&error.to_string()),
            Err(error) => format!("{error}\n"),
        };
        if is_document {
            return format!("# Seed {}\n\n{content}\n", self.seed);
        }
        frame.section(&format!("=== {}", self.seed), &content)
    }

    fn result(&self) -> Cell {
        let headline = match &self.result {
            Ok(answer) => &answer.headline,
            Err(error) => &error.what,
        };
        match self.code() {
            0 => headline.into(),
            _ => Cell::styled(Style::Bad, headline),
        }
    }
}

/// The answers of all seeds as one: a table with a line for each, and then all that each has to say. Of one seed, its
/// answer.
///
/// # Errors
/// As [`WrittenAnswer::of`]; of one seed, its error.
pub(crate) fn side_by_side(mut seeds: Vec<SeedAnswer>, frame: &Frame) -> CommandResult<WrittenAnswer> {
    // Several seeds have different names.
    if seeds.iter().all(|answer| answer.seed.is_empty())
        && let Some(only) = seeds.pop()
    {
        return only.result;
    }
    let code = seeds.iter().map(SeedAnswer::code).max();
    let mut text: String = seeds.iter().map(|answer| answer.section(frame)).collect();
    if frame.format != Format::Markdown {
        let table = TextTable::of(&seeds)
            .column("SEED", |answer| answer.seed.clone())
            .column("RESULT", |answer| answer.result());
        text.insert_str(0, &table.render(frame));
    }
    let seeds: Vec<Value> = seeds.iter().map(SeedAnswer::value).collect();
    Ok(WrittenAnswer {
        code: code.unwrap_or_default(),
        ..WrittenAnswer::of(frame, text, json!({"seeds": seeds}))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn written(format: Format) -> WrittenAnswer {
        let frame = Frame {
            format,
            ..testing::pipe()
        };
        let away = SeedAnswer {
            seed: "away".to_owned(),
            result: Err(CommandError::unreachable("no answer", "look")),
        };
        // An answer for programs is an object.
        let answer = WrittenAnswer::of(&frame, "many lines\n".to_owned(), json!({"a": 1}));
        let good = SeedAnswer {
            seed: "good".to_owned(),
            result: answer,
        };
        side_by_side(vec![away, good], &frame).unwrap()
    }

    #[test]
    fn a_seed_that_fails_stands_beside_the_others() {
        let table = written(Format::Table);
        assert_eq!(table.code, crate::error::UNREACHABLE);
        let expected = "\
SEED  RESULT
away  no answer
good  answered

=== away
error: no answer
  look

=== good
many lines
";
        assert_eq!(table.text(), expected);
        let expected = json!({"seeds": [
            {"context": "away", "error": "no answer", "advice": "look"},
            {"context": "good", "answer": {"a": 1}},
        ]});
        let document = "# Seed away\n\n    error: no answer\n      look\n\n# Seed good\n\nmany lines\n\n";
        assert_eq!(written(Format::Markdown).text(), document);
        let json = written(Format::Json).printed(Format::Json).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), expected);
        let yaml = written(Format::Yaml).printed(Format::Yaml).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), expected);
    }
}
