//! Lists of Leases in Kubernetes' Protobuf encoding, as kube-apiserver answers who accepts it.
//!
//! The messages are those of `generated.proto` in k8s.io/apimachinery and k8s.io/api.

#![expect(missing_docs, reason = "the names are those of Kubernetes")]

use bytes::{BufMut, Bytes};
use jiff::Timestamp;
use prost::Message;
use serde_json::Value;

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseList {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<Lease>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListMeta {
    #[prost(string, tag = "2")]
    pub resource_version: String,
    #[prost(string, tag = "3")]
    pub continue_token: String,
    #[prost(int64, optional, tag = "4")]
    pub remaining_item_count: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Lease {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub spec: Option<LeaseSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    pub uid: String,
    #[prost(string, tag = "6")]
    pub resource_version: String,
    #[prost(message, optional, tag = "8")]
    pub creation_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "13")]
    pub owner_references: Vec<OwnerReference>,
    #[prost(message, repeated, tag = "17")]
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

/// `Time` and `MicroTime`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct OwnerReference {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub uid: String,
    #[prost(string, tag = "5")]
    pub api_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ManagedFieldsEntry {
    #[prost(string, tag = "1")]
    pub manager: String,
    #[prost(string, tag = "2")]
    pub operation: String,
    #[prost(string, tag = "3")]
    pub api_version: String,
    #[prost(message, optional, tag = "4")]
    pub time: Option<Time>,
    #[prost(string, tag = "6")]
    pub fields_type: String,
    #[prost(message, optional, tag = "7")]
    pub fields_v1: Option<FieldsV1>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FieldsV1 {
    #[prost(string, tag = "1")]
    pub raw: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseSpec {
    #[prost(string, optional, tag = "1")]
    pub holder_identity: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub lease_duration_seconds: Option<i32>,
    #[prost(message, optional, tag = "3")]
    pub acquire_time: Option<Time>,
    #[prost(message, optional, tag = "4")]
    pub renew_time: Option<Time>,
}

impl LeaseList {
    /// The whole document.
    #[must_use]
    pub fn document(&self) -> Bytes {
        let envelope = Unknown {
            type_meta: Some(TypeMeta {
                api_version: "coordination.k8s.io/v1".to_owned(),
                kind: "LeaseList".to_owned(),
            }),
            raw: self.encode_to_vec().into(),
        };
        let mut document = Vec::with_capacity(4 + envelope.encoded_len());
        document.put_slice(b"k8s\0");
        document.put_slice(&envelope.encode_to_vec());
        document.into()
    }
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self {
            seconds: time.as_second(),
            nanos: time.subsec_nanosecond(),
        }
    }
}

/// Beyond every calendar.
const NO_TIME: Time = Time {
    seconds: i64::MAX,
    nanos: 0,
};

/// Fields of an object in JSON; what is missing or of another type is empty.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn text(&self, field: &str) -> String {
        self.0[field].as_str().unwrap_or_default().to_owned()
    }

    fn time(&self, field: &str) -> Option<Time> {
        let time: Result<Timestamp, _> = self.0[field].as_str()?.parse();
        // What is no time in JSON is none here either.
        Some(time.map_or(NO_TIME, Time::from))
    }

    fn list<T>(&self, field: &str, convert: impl Fn(Fields<'_>) -> T) -> Vec<T> {
        let items = self.0[field].as_array().map_or(&[][..], Vec::as_slice);
        items.iter().map(|item| convert(Fields(item))).collect()
    }
}

impl From<&Value> for Lease {
    fn from(lease: &Value) -> Self {
        let (metadata, spec) = (Fields(&lease["metadata"]), Fields(&lease["spec"]));
        let duration = spec.0["leaseDurationSeconds"].as_i64();
        Self {
            metadata: Some(ObjectMeta {
                name: metadata.text("name"),
                namespace: metadata.text("namespace"),
                uid: metadata.text("uid"),
                resource_version: metadata.text("resourceVersion"),
                creation_timestamp: metadata.time("creationTimestamp"),
                owner_references: metadata.list("ownerReferences", |owner| OwnerReference {
                    kind: owner.text("kind"),
                    name: owner.text("name"),
                    uid: owner.text("uid"),
                    api_version: owner.text("apiVersion"),
                }),
                managed_fields: metadata.list("managedFields", |entry| ManagedFieldsEntry {
                    manager: entry.text("manager"),
                    operation: entry.text("operation"),
                    api_version: entry.text("apiVersion"),
                    time: entry.time("time"),
                    fields_type: entry.text("fieldsType"),
                    fields_v1: Some(FieldsV1 {
                        raw: entry.0["fieldsV1"].to_string(),
                    }),
                }),
            }),
            spec: Some(LeaseSpec {
                holder_identity: spec.0["holderIdentity"].as_str().map(str::to_owned),
                lease_duration_seconds: duration.and_then(|seconds| seconds.try_into().ok()),
                acquire_time: spec.time("acquireTime"),
                renew_time: spec.time("renewTime"),
            }),
        }
    }
}
