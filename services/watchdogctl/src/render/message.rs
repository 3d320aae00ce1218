//! Messages of the API as JSON and YAML, in the shape that grpcurl shows.

use anyhow::Context as _;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;

/// A message of the package under `gardener.watchdog`, for example `probe.v1.Verdict`.
///
/// # Errors
/// When there is no such message: a defect of this program.
pub(crate) fn value<M: Message>(name: &str, message: &M) -> anyhow::Result<Value> {
    let pool = DescriptorPool::decode(watchdog_proto::FILE_DESCRIPTOR_SET)?;
    let name = format!("gardener.watchdog.{name}");
    let descriptor = pool
        .get_message_by_name(&name)
        .with_context(|| format!("the API has no message {name}"))?;
    let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())?;
    Ok(serde_json::to_value(message)?)
}

/// Adds a message to an object, if there is one.
///
/// # Errors
/// As [`value`].
pub(crate) fn field<M: Message>(
    object: &mut Value,
    field: &str,
    name: &str,
    message: Option<&M>,
) -> anyhow::Result<()> {
    if let Some(message) = message {
        set(object, field, value(name, message)?);
    }
    Ok(())
}

/// Sets a field of an object.
pub(crate) fn set(object: &mut Value, field: &str, to: impl Into<Value>) {
    if let Some(object) = object.as_object_mut() {
        object.insert(field.to_owned(), to.into());
    }
}

pub(crate) fn json(value: &Value) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(format!("{text}\n"))
}

pub(crate) fn yaml(value: &Value) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(value)?;
    Ok(format!("{}\n", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use watchdog_proto::probe::v1::{ListVerdictsResponse, Outcome};

    use super::*;
    use crate::render::testing;

    fn list() -> Value {
        let list = ListVerdictsResponse {
            verdicts: vec![testing::verdict("shoot--a--b", Outcome::LeasesExpired)],
            total_size: 1,
            ..Default::default()
        };
        value("probe.v1.ListVerdictsResponse", &list).unwrap()
    }

    #[test]
    fn the_names_and_values_are_those_of_grpcurl() {
        let list = list();
        let verdict = &list["verdicts"][0];
        assert_eq!(verdict["outcome"], "OUTCOME_LEASES_EXPIRED");
        assert_eq!(verdict["validFor"], "12s");
        assert_eq!(verdict["observeTime"], "2026-11-23T00:39:59Z");
        assert_eq!(verdict["evidence"]["expiredFraction"], 1.0);
        assert_eq!(list["totalSize"], 1);
    }

    #[test]
    fn yaml_says_the_same_as_json() {
        let list = list();
        let read: Value = serde_saphyr::from_str(&yaml(&list).unwrap()).unwrap();
        assert_eq!(read, list);
        assert!(json(&list).unwrap().ends_with("}\n"));
    }
}
