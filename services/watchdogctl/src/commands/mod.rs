//! The commands: they ask, and have the answer rendered.

pub(crate) mod certificate;
pub(crate) mod check;
pub(crate) mod history;
pub(crate) mod plan;
pub(crate) mod release;
pub(crate) mod replicas;
pub(crate) mod scaling;
pub(crate) mod shell;
pub(crate) mod shoot;
pub(crate) mod status;
pub(crate) mod ui;
pub(crate) mod verdicts;
pub(crate) mod weeders;

use prost::Message;

use crate::args::Format;
use crate::error::CommandError;
use crate::render::message;

/// An answer of the API as JSON or YAML; none for tables.
fn machine_readable<M: Message>(
    format: Format,
    name: &str,
    answer: &M,
) -> Option<Result<String, CommandError>> {
    let write = match format {
        Format::Table | Format::Wide => return None,
        Format::Json => message::json,
        Format::Yaml => message::yaml,
    };
    let text = message::value(name, answer).and_then(|value| write(&value));
    Some(text.map_err(|error| {
        CommandError::usage(format!("{error:#}"), "this is a defect of watchdogctl: report it")
    }))
}
