//! Applies Go's types to an object on its way into etcd: reject wrong types, drop unknown fields.

use k8s_openapi::api::{coordination, core, events};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Decodes and encodes again: unknown fields are gone, wrong types are an error.
pub(crate) fn typed<T: DeserializeOwned + Serialize>(value: Value) -> Result<Value, String> {
    let object: T = serde_json::from_value(value).map_err(|error| error.to_string())?;
    serde_json::to_value(object).map_err(|error| error.to_string())
}

/// Secrets: `stringData` is write-only and ends up in `data`; the type defaults to Opaque.
pub(crate) fn secret(value: Value) -> Result<Value, String> {
    let mut secret: core::v1::Secret = serde_json::from_value(value).map_err(|error| error.to_string())?;
    for (key, text) in secret.string_data.take().unwrap_or_default() {
        secret
            .data
            .get_or_insert_default()
            .insert(key, k8s_openapi::ByteString(text.into_bytes()));
    }
    secret.type_.get_or_insert_with(|| "Opaque".into());
    serde_json::to_value(secret).map_err(|error| error.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_dropped() {
        let pod = typed::<core::v1::Pod>(json!({ "metadata": { "name": "p" }, "sepc": {} })).unwrap();
        assert!(pod.get("sepc").is_none());
    }

    #[test]
    fn wrong_types_are_refused() {
        use k8s_openapi::api::apps::v1::Deployment;
        assert!(typed::<Deployment>(json!({ "metadata": {}, "spec": { "replicas": "1" } })).is_err());
    }

    #[test]
    fn micro_time_has_six_digits() {
        let lease_at = |at: &str| lease(json!({ "metadata": {}, "spec": { "renewTime": at } }));
        assert!(lease_at("2026-11-21T07:00:00.123456Z").is_ok());
        assert!(lease_at("2026-11-21T07:00:00.123Z").is_err());
        assert!(lease_at("2026-11-21T07:00:00Z").is_err());
    }

    #[test]
    fn string_data_becomes_data() {
        let value = secret(json!({ "metadata": {}, "stringData": { "a": "b" } })).unwrap();
        assert_eq!(value["data"]["a"], "Yg==");
        assert_eq!(value["type"], "Opaque");
    }
}
