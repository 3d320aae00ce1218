//! Validation of the kinds that the watchdog itself writes, beyond what types say.

use serde_json::Value;

/// A field and what is wrong with it.
pub(crate) type FieldError = (String, String);

/// Finds what is wrong with an object: when it is created there is no old one.
pub(crate) type Validate = fn(old: Option<&Value>, new: &Value) -> Vec<FieldError>;

/// Longest `action`, `reason` and `reportingInstance` of an Event.
const MAX_WORD: usize = 128;

/// Longest `note` of an Event.
const MAX_NOTE: usize = 1024;

/// Events of events.k8s.io/v1, as pkg/apis/core/validation/events.go has it.
pub(crate) fn event(old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let text = |pointer: &str| new.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let mut faults = Vec::new();
    let mut fault = |field: &str, detail: String| faults.push((field.to_owned(), detail));
    if let Some(old) = old {
        for field in [
            "action",
            "eventTime",
            "note",
            "reason",
            "regarding",
            "related",
            "reportingController",
            "type",
        ] {
            let value = |event: &Value| event.get(field).cloned().unwrap_or_default();
            if value(old) != value(new) {
                fault(
                    field,
                    format!("Invalid value: {}: field is immutable", value(new)),
                );
            }
        }
        return faults;
    }
    // Events about cluster-scoped objects live in the default namespace.
    if text("/regarding/namespace").is_empty() && text("/metadata/namespace") != "default" {
        fault(
            "involvedObject.namespace",
            "Invalid value: \"\": does not match event.namespace".into(),
        );
    }
    if text("/eventTime").is_empty() {
        fault("eventTime", "Required value".into());
    } else {
        for field in ["reportingController", "reportingInstance", "action", "reason"] {
            let value = text(&format!("/{field}"));
            if value.is_empty() {
                fault(field, "Required value".into());
            } else if value.len() > MAX_WORD {
                fault(
                    field,
                    format!("Invalid value: \"\": can have at most {MAX_WORD} characters"),
                );
            }
        }
        if text("/note").len() > MAX_NOTE {
            fault(
                "message",
                format!("Invalid value: \"\": can have at most {MAX_NOTE} characters"),
            );
        }
    }
    let kind = text("/type");
    if !matches!(kind, "Normal" | "Warning") {
        fault("type", format!("Invalid value: \"\": has invalid value: {kind}"));
    }
    for field in [
        "deprecatedFirstTimestamp",
        "deprecatedLastTimestamp",
        "deprecatedCount",
        "deprecatedSource",
    ] {
        if new.get(field).is_some() {
            fault(field, "Invalid value: \"\": needs to be unset".into());
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events() {
        let good = json!({
            "metadata": { "name": "e", "namespace": "n" },
            "regarding": { "namespace": "n" },
            "eventTime": "2026-11-21T07:00:00.000000Z",
            "reportingController": "c", "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal",
        });
        assert_eq!(event(None, &good), []);
        let mut bad = good.clone();
        bad["action"] = json!("");
        bad["note"] = json!("x".repeat(1025));
        let fields: Vec<_> = event(None, &bad).into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["action", "message"]);
        let mut series = good.clone();
        series["series"] = json!({ "count": 2 });
        assert_eq!(event(Some(&good), &series), []);
        series["reason"] = json!("other");
        assert_eq!(event(Some(&good), &series).len(), 1);
    }
}
