//! One command on one seed or on several, side by side.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use serde_json::{Value, json};

use super::{CommandAnswer, Shape};
use crate::args::ConnectArgs;
use crate::connect::{ProgramDialer, seed};
use crate::error::CommandError;
use crate::render::Frame;
use crate::render::table::{Cell, Style, TextTable};

/// A seed answers within this time, or the others are shown without it.
const SEED_TIMEOUT: Duration = Duration::from_secs(60);

/// Seeds that are asked at the same time: each has a few connections.
const AT_ONCE: usize = 32;

/// The answer of one seed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeedAnswer<T> {
    /// The context; empty if only one seed was asked.
    pub(crate) seed: String,
    pub(crate) result: Result<T, CommandError>,
}

/// Asks each seed that the options name. Of one seed an error is the error of the command.
///
/// # Errors
/// When the kubeconfig cannot be used or, of one seed, when that does not answer.
pub(crate) async fn ask_each<T>(
    connect: &ConnectArgs,
    ask: impl AsyncFn(ProgramDialer) -> Result<T, CommandError>,
) -> Result<Vec<SeedAnswer<T>>, CommandError> {
    if !connect.has_contexts() {
        let result = Ok(ask_one(connect, &ask).await?);
        return Ok(vec![SeedAnswer {
            seed: String::new(),
            result,
        }]);
    }
    let mut known = BTreeSet::new();
    let mut contexts = seed::contexts(connect)?;
    contexts.retain(|context| known.insert(context.clone()));
    let asked = contexts.into_iter().map(|context| {
        let ask = &ask;
        async move {
            let connect = ConnectArgs {
                context: Some(context.clone()),
                contexts: Vec::new(),
                all_contexts: false,
                ..connect.clone()
            };
            SeedAnswer {
                seed: watchdog_api::text::printable(&context),
                result: ask_one(&connect, ask).await,
            }
        }
    });
    Ok(stream::iter(asked).buffered(AT_ONCE).collect().await)
}

async fn ask_one<T>(
    connect: &ConnectArgs,
    ask: &impl AsyncFn(ProgramDialer) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let asked = async { ask(ProgramDialer::open(connect).await?).await };
    let answered = tokio::time::timeout(SEED_TIMEOUT, asked).await;
    answered.unwrap_or_else(|_| {
        Err(CommandError::unreachable(
            "the seed does not answer within 60 s",
            "check the connection to the API server of the seed, and the Pods of the watchdog with kubectl",
        ))
    })
}

/// The answers of all seeds as one: a table with a line for each, and then all that each has to say.
pub(crate) fn side_by_side(answers: Vec<SeedAnswer<CommandAnswer>>, shape: Shape) -> CommandAnswer {
    let codes = answers.iter().map(|answer| match &answer.result {
        Ok(answer) => answer.code,
        Err(error) => error.code,
    });
    let code = codes.max().unwrap_or_default();
    let answer = if shape.is_structured() {
        let seeds: Vec<Value> = answers.into_iter().map(value).collect();
        CommandAnswer::of_value(json!({ "seeds": seeds }))
    } else {
        CommandAnswer::of_text(text(answers, &shape.frame))
    };
    answer.with_code(code)
}

fn value(answer: SeedAnswer<CommandAnswer>) -> Value {
    match answer.result {
        Ok(found) => json!({"context": answer.seed, "answer": found.into_value()}),
        Err(error) => json!({"context": answer.seed, "error": error.what()}),
    }
}

fn text(answers: Vec<SeedAnswer<CommandAnswer>>, frame: &Frame) -> String {
    let mut table = TextTable::new(["SEED", "RESULT"]);
    let mut sections = String::new();
    for SeedAnswer { seed, result } in answers {
        let (style, result, section) = match result {
            Ok(answer) => {
                let style = if answer.code == 0 {
                    Style::Plain
                } else {
                    Style::Bad
                };
                let headline = answer.headline.clone().unwrap_or_else(|| "answered".to_owned());
                (style, headline, answer.into_text())
            }
            Err(error) => (Style::Bad, error.what().to_owned(), format!("{error}\n")),
        };
        let heading = frame.paint(Style::Bold, &format!("=== {seed}"));
        sections.push_str(&format!("\n{heading}\n{section}"));
        table.row([seed.into(), Cell::styled(style, result)]);
    }
    table.render(frame) + &sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::render::testing;

    fn answers() -> Vec<SeedAnswer<CommandAnswer>> {
        let good = CommandAnswer::of_text("many lines\n".to_owned()).with_headline("all is well".to_owned());
        vec![
            SeedAnswer {
                seed: "away".to_owned(),
                result: Err(CommandError::unreachable("no answer", "look")),
            },
            SeedAnswer {
                seed: "good".to_owned(),
                result: Ok(good),
            },
        ]
    }

    #[test]
    fn a_seed_that_fails_stands_beside_the_others() {
        let shape = |format| Shape {
            format,
            frame: testing::pipe(),
        };
        let table = side_by_side(answers(), shape(Format::Table));
        assert_eq!(table.code, crate::error::UNREACHABLE);
        let expected = "\
SEED  RESULT
away  no answer
good  all is well

=== away
error: no answer
  look

=== good
many lines
";
        assert_eq!(table.into_text(), expected);
        let mut answers = answers();
        answers[1].result = Ok(CommandAnswer::of_value(json!({"a": 1})));
        let value = side_by_side(answers, shape(Format::Json)).into_value();
        let expected = json!({"seeds": [
            {"context": "away", "error": "no answer"},
            {"context": "good", "answer": {"a": 1}},
        ]});
        assert_eq!(value, expected);
    }
}
