//! Messages of the API: without anything that a terminal acts upon, because a program passes on names and messages from
//! shoots, and as objects in the shape that grpcurl shows.

use std::ops::Deref;
use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage as _, Value};
use serde::ser::{Error as _, Serialize, Serializer};
use watchdog_api::text;

use crate::error::{CommandError, CommandResult};

static MESSAGES: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(watchdog_proto::FILE_DESCRIPTOR_SET).ok());

/// A message of the API as it is shown or written for programs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ApiMessage<M>(pub(crate) M);

impl<M> Deref for ApiMessage<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.0
    }
}

impl<M: Message + Name + Default> ApiMessage<M> {
    /// The message with all its texts printable, and without times and durations that no calendar has: JSON has no form
    /// for them, and one of them must not hide all the rest.
    ///
    /// # Errors
    /// When the API has no such message: a defect of this program.
    pub(crate) fn printable(message: &M) -> CommandResult<Self> {
        let mut dynamic = dynamic(message)?;
        clean_message(&mut dynamic);
        dynamic.transcode_to().map(Self).map_err(defect::<M>)
    }
}

impl<M: Message + Name> Serialize for ApiMessage<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let dynamic = dynamic(&self.0).map_err(|error| S::Error::custom(error.what))?;
        dynamic.serialize(serializer)
    }
}

fn dynamic<M: Message + Name>(message: &M) -> CommandResult<DynamicMessage> {
    let descriptor = MESSAGES
        .as_ref()
        .and_then(|pool| pool.get_message_by_name(&M::full_name()));
    let mut dynamic =
        DynamicMessage::new(descriptor.ok_or_else(|| defect::<M>("the API has no such message"))?);
    dynamic.transcode_from(message).map_err(defect::<M>)?;
    Ok(dynamic)
}

fn defect<M: Name>(why: impl ToString) -> CommandError {
    CommandError::unexpected(&format!("{}: {}", M::full_name(), why.to_string()))
}

fn clean_message(message: &mut DynamicMessage) {
    let impossible = message.fields().filter(|(_, value)| is_impossible(value));
    let impossible: Vec<_> = impossible.map(|(field, _)| field).collect();
    for field in impossible {
        message.clear_field(&field);
    }
    for (_, value) in message.fields_mut() {
        clean(value);
    }
}

/// True for a time or a duration that JSON cannot have.
fn is_impossible(value: &Value) -> bool {
    let is_of_calendar = |message: &DynamicMessage| message.descriptor().package_name() == "google.protobuf";
    value
        .as_message()
        .is_some_and(|message| is_of_calendar(message) && serde_json::to_value(message).is_err())
}

fn clean(value: &mut Value) {
    match value {
        Value::String(shown) if !shown.chars().all(text::is_printable) => *shown = text::printable(shown),
        Value::Message(message) => clean_message(message),
        Value::List(list) => list.iter_mut().for_each(clean),
        Value::Map(map) => map.values_mut().for_each(clean),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{Duration, Timestamp};
    use watchdog_proto::probe::v1::{ListVerdictsResponse, Outcome, Verdict};

    use super::*;
    use crate::render::testing;

    #[test]
    fn an_impossible_time_hides_nothing_else() {
        let verdict = |shoot, seconds, nanos| Verdict {
            outcome_change_time: Some(Timestamp { seconds, nanos }),
            valid_for: Some(Duration { seconds, nanos }),
            ..testing::verdict(shoot, Outcome::Healthy)
        };
        let verdicts = vec![
            verdict("one", i64::MAX, 0),
            verdict("two", i64::MIN, 0),
            verdict("three", 1, 0),
        ];
        let list = ListVerdictsResponse {
            verdicts,
            ..Default::default()
        };
        let list = serde_json::to_value(ApiMessage::printable(&list).unwrap()).unwrap();
        for (at, shoot) in ["one", "two", "three"].into_iter().enumerate() {
            let verdict = &list["verdicts"][at];
            assert_eq!(
                (&verdict["shoot"], &verdict["age"]),
                (&shoot.into(), &"1s".into())
            );
            let known = shoot == "three";
            assert_eq!(verdict.get("outcomeChangeTime").is_some(), known, "{verdict}");
            assert_eq!(verdict.get("validFor").is_some(), known, "{verdict}");
        }
    }
}
