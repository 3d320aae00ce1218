//! Objects as text with holes: written thousands of times a second without a JSON encoder.

use jiff::Timestamp;
use serde_json::Value;
use watchdog_sandbox::protobuf::Lease;

/// The fields that differ from one object to the next.
#[derive(Debug, Clone)]
pub struct Values {
    /// `@name@`: name of the node.
    pub name: String,
    /// `@uid@`: a UID that stays the same.
    pub uid: String,
    /// `@version@`: resourceVersion.
    pub version: u64,
    /// `@renewed@`: the last renewal, in microseconds since 1970.
    pub renewed: i64,
    /// `@zone@`: the zone.
    pub zone: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePiece {
    Text(Box<str>),
    Name,
    Uid,
    Version,
    Renewed,
    Zone,
}

/// One kind of object.
#[derive(Debug, Clone)]
pub struct Template {
    pieces: Vec<TemplatePiece>,
}

const HOLES: [(&str, TemplatePiece); 5] = [
    ("@name@", TemplatePiece::Name),
    ("@uid@", TemplatePiece::Uid),
    ("@version@", TemplatePiece::Version),
    ("@renewed@", TemplatePiece::Renewed),
    ("@zone@", TemplatePiece::Zone),
];

impl Template {
    /// Splits a text at its holes.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut pieces = Vec::new();
        let mut rest = text;
        let first = |rest: &str| {
            let found = HOLES
                .iter()
                .filter_map(|(mark, piece)| Some((rest.find(mark)?, *mark, piece)));
            found.min_by_key(|(at, _, _)| *at)
        };
        while let Some((at, mark, piece)) = first(rest) {
            let (before, after) = rest.split_at(at);
            pieces.push(TemplatePiece::Text(before.into()));
            pieces.push(piece.clone());
            rest = after.strip_prefix(mark).unwrap_or_default();
        }
        pieces.push(TemplatePiece::Text(rest.into()));
        Self { pieces }
    }

    /// Appends the text with the holes filled.
    pub fn write(&self, out: &mut Vec<u8>, values: &Values) {
        use std::io::Write as _;
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePiece::Name => out.extend_from_slice(values.name.as_bytes()),
                TemplatePiece::Uid => out.extend_from_slice(values.uid.as_bytes()),
                TemplatePiece::Zone => out.extend_from_slice(values.zone.as_bytes()),
                // Writing to a Vec cannot fail.
                TemplatePiece::Version => _ = write!(out, "{}", values.version),
                TemplatePiece::Renewed => _ = write!(out, "{:.6}", time(values.renewed)),
            }
        }
    }

    /// Bytes of the text without what fills the holes.
    #[must_use]
    pub fn fixed_len(&self) -> usize {
        let text = |piece: &TemplatePiece| match piece {
            TemplatePiece::Text(text) => text.len(),
            _ => 0,
        };
        self.pieces.iter().map(text).sum()
    }
}

/// A Lease as a message of Protobuf.
#[derive(Debug, Clone)]
pub struct LeaseTemplate(Lease);

impl LeaseTemplate {
    /// From the text with its holes.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let lease = serde_json::from_str::<Value>(text).unwrap_or_default();
        Self(Lease::from(&lease))
    }

    /// The Lease with the holes filled. Only the names of the fields that kubelet owns keep their hole.
    #[must_use]
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
#[must_use]
pub fn time(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled() {
        let template = Template::new(r#"{"n":"@name@","t":"@renewed@","v":"@version@","m":"@name@"}"#);
        let mut out = b"[".to_vec();
        let values = Values {
            name: "node-1".to_owned(),
            uid: "u".to_owned(),
            version: 7,
            renewed: 1_700_000_000_000_001,
            zone: "z",
        };
        template.write(&mut out, &values);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"[{"n":"node-1","t":"2023-11-14T22:13:20.000001Z","v":"7","m":"node-1"}"#
        );
    }
}
