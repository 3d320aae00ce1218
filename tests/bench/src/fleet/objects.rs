//! Leases and Nodes as a shoot's API server answers them, of a realistic size: JSON with holes, which is written
//! thousands of times a second without a JSON encoder.

use std::io::Write;

use jiff::Timestamp;
use serde_json::Value;
use watchdog_sandbox::protobuf::Lease;

/// Before and after the name of a hole; stands nowhere else.
const HOLE: char = '|';

/// A node's Lease as kubelet writes it: about 0.9 kB.
pub fn lease() -> String {
    compact(include_str!("lease.json"))
}

/// A Node of a Gardener shoot: about 10 kB, a fifth of it the fields that its three writers own.
pub fn node() -> String {
    compact(include_str!("node.json"))
}

fn compact(json: &str) -> String {
    let value: Value = serde_json::from_str(json).unwrap_or_default();
    value.to_string()
}

/// The values for the holes, by their names.
#[derive(Debug, Clone)]
pub struct Values {
    /// Name of the node.
    pub name: String,
    /// A UID that stays the same.
    pub uid: String,
    /// resourceVersion.
    pub version: u64,
    /// The last renewal, in microseconds since 1970.
    pub renewed: i64,
    pub zone: &'static str,
}

/// One kind of object: text and names of holes in turn.
#[derive(Debug, Clone)]
pub struct Template(Vec<Box<str>>);

impl Template {
    /// Splits a text at its holes.
    pub fn new(text: &str) -> Self {
        Self(text.split(HOLE).map(Box::from).collect())
    }

    /// Appends the text with the holes filled.
    pub fn write(&self, out: &mut Vec<u8>, values: &Values) {
        for (number, piece) in self.0.iter().enumerate() {
            // Writing to a Vec cannot fail.
            _ = match &**piece {
                text if number.is_multiple_of(2) => out.write_all(text.as_bytes()),
                "name" => out.write_all(values.name.as_bytes()),
                "uid" => out.write_all(values.uid.as_bytes()),
                "zone" => out.write_all(values.zone.as_bytes()),
                "version" => write!(out, "{}", values.version),
                _ => write!(out, "{:.6}", time(values.renewed)),
            };
        }
    }

    /// Bytes of the text, the holes not filled.
    pub fn text_len(&self) -> usize {
        self.0.iter().map(|piece| piece.len()).sum()
    }
}

/// A Lease as a message of Protobuf.
#[derive(Debug, Clone)]
pub struct LeaseTemplate(Lease);

impl LeaseTemplate {
    /// From the text with its holes.
    pub fn new(text: &str) -> Self {
        let lease = serde_json::from_str::<Value>(text).unwrap_or_default();
        Self(Lease::from(&lease))
    }

    /// The Lease with the holes filled. Only the names of the fields that kubelet owns keep their hole.
    pub fn filled(&self, values: &Values) -> Lease {
        let mut lease = self.0.clone();
        let renewed = Some(time(values.renewed).into());
        let metadata = lease.metadata.get_or_insert_default();
        metadata.name.clone_from(&values.name);
        metadata.uid.clone_from(&values.uid);
        metadata.resource_version = values.version.to_string();
        for owner in &mut metadata.owner_references {
            owner.name.clone_from(&values.name);
            owner.uid.clone_from(&values.uid);
        }
        for entry in &mut metadata.managed_fields {
            entry.time = renewed;
        }
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(values.name.clone());
        spec.renew_time = renewed;
        lease
    }
}

/// A time from microseconds since 1970; the epoch for what is out of range.
pub fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut out = Vec::new();
        let values = Values {
            name: "shoot--bench--0042-worker-z1-6c9f8-x7k2p".to_owned(),
            uid: "3b1c8e0a-52d1-4a52-9f4c-0123456789ab".to_owned(),
            version: 123_456_789,
            renewed: 1_700_000_000_000_001,
            zone: "eu-west-1a",
        };
        Template::new(text).write(&mut out, &values);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sizes_are_those_of_real_objects() {
        for (text, sizes) in [(lease(), 800..1_000), (node(), 8_000..12_000)] {
            let object = written(&text);
            assert!(sizes.contains(&object.len()), "{} bytes", object.len());
            serde_json::from_str::<Value>(&object).unwrap();
        }
    }
}
