//! Answers without anything that a terminal acts upon: a program passes on names and messages from shoots.

use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, Value};
use watchdog_api::text;

use crate::error::CommandError;

static MESSAGES: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(watchdog_proto::FILE_DESCRIPTOR_SET).ok());

/// The message with all its texts printable.
///
/// # Errors
/// When the API has no such message: a defect of this program.
pub(crate) fn message<M: Message + Name + Default>(message: M) -> Result<M, CommandError> {
    let name = M::full_name();
    let descriptor = MESSAGES.as_ref().and_then(|pool| pool.get_message_by_name(&name));
    let unknown = || CommandError::unexpected(&format!("the API has no message {name}"));
    let mut dynamic = DynamicMessage::new(descriptor.ok_or_else(unknown)?);
    let transcoded = dynamic.transcode_from(&message).map(|()| {
        clean_message(&mut dynamic);
        dynamic.transcode_to()
    });
    match transcoded {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(error)) | Err(error) => Err(CommandError::unexpected(&format!("{name}: {error}"))),
    }
}

fn clean_message(message: &mut DynamicMessage) {
    for (_, value) in message.fields_mut() {
        clean(value);
    }
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
    use watchdog_proto::probe::v1::{Evidence, ListVerdictsResponse, Verdict, ZoneEvidence};

    use super::*;

    #[test]
    fn texts_are_printable_at_any_depth_and_the_rest_is_as_it_was() {
        let verdict = |message: &str, zone: &str| Verdict {
            shoot: "shoot--a--b".to_owned(),
            message: message.to_owned(),
            evidence: Some(Evidence {
                leases: 7,
                zones: vec![ZoneEvidence {
                    zone: zone.to_owned(),
                    ..Default::default()
                }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let list = |verdict| ListVerdictsResponse {
            verdicts: vec![verdict],
            total_size: 1,
            ..Default::default()
        };
        let hostile = list(verdict("\u{1b}]0;x\u{7}gone", "a\u{202e}b"));
        let shown = message(hostile).ok().unwrap();
        assert_eq!(shown, list(verdict(" ]0;x gone", "a b")));
    }
}
