//! Applies Go's types to an object on its way into etcd: reject wrong types, drop unknown fields.

use k8s_openapi::api::{coordination, events};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Decodes and encodes again: unknown fields are gone, wrong types are an error.
pub(crate) fn typed<T: DeserializeOwned + Serialize>(value: Value) -> Result<Value, String> {
    let object: T = serde_json::from_value(value).map_err(|error| error.to_string())?;
    serde_json::to_value(object).map_err(|error| error.to_string())
}

/// Leases: Go's MicroTime demands exactly six fractional digits.
pub(crate) fn lease(value: Value) -> Result<Value, String> {
    for field in ["/spec/renewTime", "/spec/acquireTime"] {
        micro_time(&value, field)?;
    }
    typed::<coordination::v1::Lease>(value)
}

/// Events of events.k8s.io: the times are also MicroTime.
pub(crate) fn event(value: Value) -> Result<Value, String> {
    for field in ["/eventTime", "/series/lastObservedTime"] {
        micro_time(&value, field)?;
    }
    typed::<events::v1::Event>(value)
}

/// Go parses MicroTime with the layout `2006-01-02T15:04:05.000000Z07:00`.
fn micro_time(value: &Value, pointer: &str) -> Result<(), String> {
    let Some(text) = value.pointer(pointer).and_then(Value::as_str) else {
        return Ok(());
    };
    let digits = text
        .split_once('.')
        .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).count())
        .unwrap_or_default();
    if digits == 6 {
        return Ok(());
    }
    Err(format!(
        "parsing time \"{text}\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"{text}\" as \".000000\""
    ))
}
