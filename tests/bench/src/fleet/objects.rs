//! Leases and Nodes as a shoot's API server answers them, of a realistic size: JSON with holes, which
//! [`super::template`] fills.

use serde_json::Value;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::template::{Template, Values};

    fn written(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let values = Values {
            name: "shoot--bench--0042-worker-z1-6c9f8-x7k2p".to_owned(),
            uid: "3b1c8e0a-52d1-4a52-9f4c-0123456789ab".to_owned(),
            version: 123_456_789,
            renewed: 1_700_000_000_000_001,
            zone: "eu-west-1a",
        };
        Template::new(text).write(&mut out, &values);
        out
    }

    #[test]
    fn sizes_are_those_of_real_objects() {
        let (lease, node) = (written(&lease()), written(&node()));
        assert!(
            (800..1_000).contains(&lease.len()),
            "a lease of {} bytes",
            lease.len()
        );
        assert!(
            (8_000..12_000).contains(&node.len()),
            "a node of {} bytes",
            node.len()
        );
        for text in [lease, node] {
            serde_json::from_slice::<Value>(&text).unwrap();
        }
    }
}
