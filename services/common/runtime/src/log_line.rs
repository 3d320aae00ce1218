//! The form of a log line: the fields of an event and of the spans around it, side by side, no name twice.
//!
//! tracing-subscriber's own JSON format nests the fields of spans in an object per span, and writes a name as often as
//! it was recorded. Log systems query flat lines, and keep one of two equal keys at random.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_log::NormalizeEvent as _;
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::registry::LookupSpan;
use watchdog_api::text;

use crate::args::LogFormat;

/// Names that every line has. A field with such a name gets the prefix `field_`.
const RESERVED: [&str; 4] = ["timestamp", "level", "target", MESSAGE];

/// The name under which `tracing` records the message of an event, before any field.
const MESSAGE: &str = "message";

/// The most characters of a text in a line: while nobody reads them, thousands of lines wait in memory.
const LONGEST_TEXT: usize = 2_048;

/// A text from anywhere, cut, and without characters that a terminal acts upon: JSON escapes only some of them.
fn shown(text: &str) -> String {
    text::printable(&text::begin(text, LONGEST_TEXT))
}

/// Writes one line per event.
pub(crate) struct LineFormat(pub(crate) LogFormat);

impl<S> FormatEvent<S, JsonFields> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let normalized = event.normalized_metadata();
        let metadata = normalized.as_ref().unwrap_or_else(|| event.metadata());
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;

        let mut fields = Fields::default();
        for span in context
            .event_scope()
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            if let Some(recorded) = span.extensions().get::<FormattedFields<JsonFields>>() {
                let recorded: Map<String, Value> = serde_json::from_str(recorded).unwrap_or_default();
                for (name, value) in recorded {
                    fields.insert(&name, value);
                }
            }
        }
        event.record(&mut fields);

        let (level, target, Fields { message, rest }) = (metadata.level(), metadata.target(), fields);
        match self.0 {
            LogFormat::Json => {
                let mut line = format!("{{\"timestamp\":{},", Value::from(timestamp));
                line += &format!("\"level\":\"{level}\",\"target\":{}", Value::from(target));
                line += &format!(",\"{MESSAGE}\":{}", Value::from(message.unwrap_or_default()));
                for (name, value) in rest {
                    line += &format!(",{}:{value}", Value::from(name));
                }
                writeln!(writer, "{line}}}")
            }
            LogFormat::Text => {
                write!(
                    writer,
                    "{timestamp} {level:>5} {target}: {}",
                    message.unwrap_or_default()
                )?;
                for (name, value) in rest {
                    match value {
                        Value::String(text) if is_plain(&text) => write!(writer, " {name}={text}")?,
                        value => write!(writer, " {name}={value}")?,
                    }
                }
                writeln!(writer)
            }
        }
    }
}

/// True if a text needs no quotes to be distinguished from the next field.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| !c.is_whitespace() && !c.is_control() && c != '"')
}

/// The message and the fields of a line. A later value of a name replaces the earlier one: spans are recorded from the
/// outermost to the innermost, the event last.
#[derive(Default)]
struct Fields {
    message: Option<String>,
    rest: Map<String, Value>,
}

impl Fields {
    fn insert(&mut self, name: &str, value: Value) {
        let value = match value {
            Value::String(text) => shown(&text).into(),
            other => other,
        };
        let name = if RESERVED.contains(&name) {
            format!("field_{name}")
        } else {
            name.to_owned()
        };
        self.rest.insert(name, value);
    }

    fn record(&mut self, field: &Field, value: impl Into<Value>) {
        // Records of the `log` crate carry their origin in fields; the metadata has it already.
        if !field.name().starts_with("log.") {
            self.insert(field.name(), value.into());
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == MESSAGE && self.message.is_none() {
            self.message = Some(shown(&text));
        } else {
            self.record(field, text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.record(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.record(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;
    use tracing::field::Empty;

    use super::*;
    use crate::telemetry::tests::logged;

    /// The lines of a span for a shoot, one for a resource in it, and events in them.
    fn lines(format: LogFormat) -> Vec<String> {
        logged(format, |_| {
            let shoot = tracing::info_span!("reconcile", shoot = "shoot--p--a", direction = Empty);
            shoot.record("direction", "down");
            shoot.in_scope(|| {
                let resource =
                    tracing::info_span!("write", resource = "Deployment/etcd \"main\"", replicas = 2);
                let _entered = resource.enter();
                tracing::info!(replicas = 0, dry_run = false, "scaled");
                tracing::warn!(message = "beside it", level = 3, "twice");
            });
            tracing::info!("outside");
        })
    }

    #[test]
    fn json_lines_have_the_fields_of_spans_beside_those_of_the_event() {
        let lines = lines(LogFormat::Json);
        let parsed: Vec<HashMap<String, Value>> = lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let [scaled, twice, outside] = &parsed[..] else {
            panic!("{lines:?}");
        };
        for (name, value) in [
            ("level", json!("INFO")),
            ("target", json!("watchdog_runtime::log_line::tests")),
            ("message", json!("scaled")),
            ("shoot", json!("shoot--p--a")),
            ("direction", json!("down")),
            ("resource", json!("Deployment/etcd \"main\"")),
            ("replicas", json!(0)),
            ("dry_run", json!(false)),
        ] {
            assert_eq!(scaled.get(name), Some(&value), "{name}");
        }
        assert_eq!(scaled.len(), 9, "these and the timestamp: {scaled:?}");
        for (parsed, line) in parsed.iter().zip(&lines) {
            let once = serde_json::to_string(parsed).unwrap();
            assert_eq!(once.len(), line.len(), "a key stands twice in {line}");
        }
        assert_eq!(
            (&twice["message"], &twice["field_message"]),
            (&json!("twice"), &json!("beside it"))
        );
        assert_eq!(
            (&twice["level"], &twice["field_level"]),
            (&json!("WARN"), &json!(3))
        );
        assert_eq!(twice["replicas"], json!(2));
        assert_eq!(outside.len(), 4, "{outside:?}");
    }

    #[test]
    fn text_lines_have_the_same_fields() {
        let lines = lines(LogFormat::Text);
        let end = "log_line::tests: scaled direction=down dry_run=false replicas=0 \
                   resource=\"Deployment/etcd \\\"main\\\"\" shoot=shoot--p--a";
        assert!(lines[0].ends_with(end), "{}", lines[0]);
        assert!(
            lines[1].contains(": twice direction=down field_level=3 "),
            "{}",
            lines[1]
        );
        assert!(
            lines[2].ends_with(" INFO watchdog_runtime::log_line::tests: outside"),
            "{}",
            lines[2]
        );
    }

    #[test]
    fn texts_are_cut_and_printable() {
        let hostile = "\u{1b}[2J\u{7}\u{9b}31m\u{202e}\r\n".to_owned() + &"n".repeat(300_000);
        for format in [LogFormat::Json, LogFormat::Text] {
            let lines = logged(format, |_| {
                let span = tracing::info_span!("span", outer = hostile);
                span.in_scope(|| tracing::info!(inner = hostile, debug = ?hostile, "{hostile}"));
            });
            assert_eq!(lines.len(), 1);
            assert!(lines[0].len() < 5 * LONGEST_TEXT, "{} bytes", lines[0].len());
            assert!(lines[0].chars().all(text::is_printable), "{}", lines[0]);
        }
    }

    #[test]
    fn records_of_the_log_crate_keep_their_target() {
        let lines = logged(LogFormat::Json, |_| {
            let record = tracing_log::log::Record::builder()
                .level(tracing_log::log::Level::Warn)
                .target("library::check")
                .args(format_args!("unexpected end"))
                .build();
            tracing_log::format_trace(&record).unwrap();
        });
        let line: Value = serde_json::from_str(&lines.join("\n")).unwrap();
        assert_eq!(
            (&line["target"], &line["message"]),
            (&json!("library::check"), &json!("unexpected end"))
        );
        assert_eq!(line.as_object().map(Map::len), Some(4), "{line}");
    }
}
