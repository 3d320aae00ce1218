//! Kubernetes' Protobuf encoding, which costs an API server and its caller a fraction of JSON.
//!
//! Fields and their numbers are those of `generated.proto` in k8s.io/apimachinery (`pkg/runtime`, `pkg/apis/meta/v1`)
//! and k8s.io/api (`coordination/v1`): part of Kubernetes' API, where a number never gets another meaning. What is not
//! declared here is skipped.

use std::fmt::Debug;

use prost::Message;

use crate::list::{ListError, PageMeta};

/// The media types for a request whose answer may be in Protobuf, in the order of preference.
pub const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";

/// Every document begins with it, and no JSON document does.
const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`, the envelope of every document. An API server declares its content as bytes, which look the same.
#[derive(Clone, PartialEq, Message)]
struct Envelope<T: Message + Default + Debug> {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(message, optional, tag = "2")]
    raw: Option<T>,
}

/// `runtime.TypeMeta`.
#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

/// `metav1.ObjectMeta`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "6")]
    pub(crate) resource_version: String,
}

/// `metav1.MicroTime`. Go's zero time, which is null in JSON, is an empty message; every other time has both fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct MicroTime {
    #[prost(int64, optional, tag = "1")]
    pub(crate) seconds: Option<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// `coordinationv1.Lease`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Lease {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<LeaseSpec>,
}

/// `coordinationv1.LeaseSpec`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseSpec {
    #[prost(int32, optional, tag = "2")]
    pub(crate) lease_duration_seconds: Option<i32>,
    #[prost(message, optional, tag = "4")]
    pub(crate) renew_time: Option<MicroTime>,
}

/// `coordinationv1.LeaseList`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseList {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<PageMeta>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) items: Vec<Lease>,
}

/// The fields of a list, to be counted.
#[derive(Clone, PartialEq, Eq, Message)]
struct FieldCounts {
    #[prost(message, repeated, tag = "1")]
    metadata: Vec<Skipped>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Skipped>,
}

/// A message of which nothing is kept: any number of them takes no memory.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Skipped {}

/// `metav1.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, optional, tag = "3")]
    message: Option<String>,
}

/// Returns true for a document in Protobuf.
pub(crate) fn is_protobuf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Decodes a list of at most `most` leases. A longer one is refused before its items take memory.
///
/// # Errors
/// Why the bytes are no such list.
pub(crate) fn leases(bytes: &[u8], most: usize) -> Result<LeaseList, ListError> {
    const KIND: &str = "LeaseList";
    let counts: FieldCounts = content(bytes, KIND)?;
    // An API server always writes the metadata, once. An answer without it must not pass for an empty list or a last
    // page, nor two answers for one.
    if counts.metadata.len() != 1 {
        return Err(ListError("its metadata is missing or repeated".to_owned()));
    }
    if counts.items.len() > most {
        return Err(ListError(format!("more than {most} entries")));
    }
    content(bytes, KIND)
}

/// The message of a `Status`; none for anything else.
#[must_use]
pub fn status_message(bytes: &[u8]) -> Option<String> {
    content::<Status>(bytes, "Status").ok()?.message
}

fn content<T: Message + Default + Debug>(bytes: &[u8], kind: &str) -> Result<T, ListError> {
    let document = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| ListError("it is not in Protobuf".to_owned()))?;
    // A decoder's error names the message and the field, and nothing of the content.
    let envelope = Envelope::<T>::decode(document).map_err(|error| ListError(error.to_string()))?;
    match envelope.type_meta {
        Some(of) if of.kind == kind => Ok(envelope.raw.unwrap_or_default()),
        _ => Err(ListError(format!("its kind is not {kind}"))),
    }
}

#[cfg(test)]
mod tests;
