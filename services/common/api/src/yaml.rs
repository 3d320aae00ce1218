//! YAML (and so JSON) as a tree whose every key and value knows its place, and the limits within which serde-saphyr
//! reads every file.

use crate::config_error::{ConfigError, Pos};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{
    DuplicateKeyPolicy, Error, Location, NonFiniteFloatPolicy, Options, Spanned, budget::BudgetBreach,
};
use std::{fmt, ops::Range};

/// Largest file that is read: the size limit of a ConfigMap or Secret.
const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting; a configuration file has 7 levels, a kubeconfig 5.
const MAX_DEPTH: usize = 32;
/// Most values in a file, and most that its aliases may add.
const MAX_NODES: usize = 100_000;

/// A key or a value.
#[derive(Debug, Deserialize)]
#[serde(from = "Spanned<NodeKind>")]
pub(crate) struct Node {
    /// Its begin; where an alias or a merge key (`<<`) brings it in, theirs.
    pub(crate) pos: Pos,
    pub(crate) kind: NodeKind,
    /// Its own bytes in the file.
    span: Range<usize>,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
    Null,
    /// A boolean or a number, which only the file shows as it is written.
    Plain,
    /// Any other scalar, escapes resolved.
    Text(String),
    Sequence(Vec<Node>),
    /// Keys and values in the file's order, then those of merge keys. Repeated keys are included.
    Mapping(Vec<(Node, Node)>),
}

/// Reads one document: its tree, and the first key that is given twice.
///
/// # Errors
/// Not YAML, more than one document, too deep or too many values, an alias that contains itself, an unknown tag.
pub(crate) fn parse(file: &str) -> Result<(Node, Option<ConfigError>), ConfigError> {
    let mut options = options();
    match serde_saphyr::from_str_with_options(file, options.clone()) {
        Ok(root) => Ok((root, None)),
        Err(error) if matches!(cause(&error), Error::DuplicateMappingKey { .. }) => {
            // This policy passes all but numbers on as often as they are given.
            options.duplicate_keys = DuplicateKeyPolicy::LastWins;
            let root = serde_saphyr::from_str_with_options(file, options).map_err(|error| fault(&error))?;
            Ok((root, Some(fault(&error))))
        }
        Err(error) => Err(fault(&error)),
    }
}

/// The text of a file, without a byte order mark.
///
/// # Errors
/// Too large or not UTF-8; quotes nothing of the file.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, ConfigError> {
    if bytes.len() > MAX_BYTES {
        let message = format!("the file has {} bytes; the limit is {MAX_BYTES}", bytes.len());
        return Err(ConfigError::new(Pos::START, "", message));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ConfigError::new(Pos { line, column }, "", "the file is not UTF-8")
    })
}

/// How every file is read.
pub(crate) fn options() -> Options {
    serde_saphyr::options! {
        // Many aliases of one anchor are no attack while what they expand to is bounded: generators of YAML write them.
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH, max_nodes: MAX_NODES, max_aliases: MAX_NODES, enforce_alias_anchor_ratio: false
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_NODES },
        emit_comments: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// The error below the aliases in which it was found.
pub(crate) fn cause(error: &Error) -> &Error {
    match error {
        Error::AliasError { error, .. } => cause(error),
        other => other,
    }
}

fn fault(error: &Error) -> ConfigError {
    let message = match cause(error) {
        Error::ExternalMessage { msg, .. } => msg.clone(),
        Error::DuplicateMappingKey { .. } => "a key is given twice".to_owned(),
        Error::MultipleDocuments { .. } => "the file holds more than one YAML document".to_owned(),
        Error::MergeValueNotMapOrSeqOfMaps { .. } => "<< can merge mappings only".to_owned(),
        Error::UnsupportedTag { tag, .. } => {
            format!("the tag {:?} is not known", cut(tag.trim_start_matches('!')))
        }
        Error::UnknownAnchor { .. } => "the alias refers to a value that is not there".to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "the alias refers to a value that contains it".to_owned()
        }
        Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            format!("the file is nested deeper than {MAX_DEPTH} levels")
        }
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => {
            format!("the file holds more than {MAX_NODES} values, aliases expanded")
        }
        _ => "the file is not valid YAML".to_owned(),
    };
    ConfigError::new(error.location().map_or(Pos::START, Pos::from), "", message)
}

// === impl Pos ===

impl From<Location> for Pos {
    fn from(location: Location) -> Self {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        Self {
            line: number(location.line()),
            column: number(location.column()),
        }
    }
}

// === impl Node ===

impl Node {
    /// The text of a scalar, and true if it stands in the file like this, not quoted and not in several lines. `file`
    /// is what was parsed.
    pub(crate) fn scalar<'d>(&'d self, file: &'d str) -> Option<(&'d str, bool)> {
        let written = file.get(self.span.clone()).unwrap_or_default();
        match &self.kind {
            NodeKind::Null | NodeKind::Plain => Some((written, true)),
            NodeKind::Text(text) => Some((text.as_str(), text == written)),
            NodeKind::Sequence(_) | NodeKind::Mapping(_) => None,
        }
    }
}

impl From<Spanned<NodeKind>> for Node {
    fn from(spanned: Spanned<NodeKind>) -> Self {
        let span = spanned.defined.span();
        let bytes = |number: Option<u64>| number.map_or(0, |number| usize::try_from(number).unwrap_or(0));
        let start = bytes(span.byte_offset());
        Self {
            pos: spanned.referenced.into(),
            kind: spanned.value,
            span: start..start + bytes(span.byte_len()),
        }
    }
}

// === impl NodeKind ===

impl<'de> Deserialize<'de> for NodeKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyKind)
    }
}

struct AnyKind;

impl<'de> Visitor<'de> for AnyKind {
    type Value = NodeKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<NodeKind, E> {
        Ok(NodeKind::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<NodeKind, E> {
        Ok(NodeKind::Plain)
    }

    fn visit_i64<E>(self, _: i64) -> Result<NodeKind, E> {
        Ok(NodeKind::Plain)
    }

    fn visit_u64<E>(self, _: u64) -> Result<NodeKind, E> {
        Ok(NodeKind::Plain)
    }

    fn visit_f64<E>(self, _: f64) -> Result<NodeKind, E> {
        Ok(NodeKind::Plain)
    }

    fn visit_str<E>(self, text: &str) -> Result<NodeKind, E> {
        Ok(NodeKind::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NodeKind, A::Error> {
        let mut kept = Vec::new();
        while let Some(item) = items.next_element()? {
            kept.push(item);
        }
        Ok(NodeKind::Sequence(kept))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<NodeKind, A::Error> {
        let mut kept = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            kept.push(entry);
        }
        Ok(NodeKind::Mapping(kept))
    }
}

/// A text cut to what fits into a message.
pub(crate) fn cut(text: &str) -> String {
    const LIMIT: usize = 60;
    if text.chars().count() <= LIMIT {
        text.to_owned()
    } else {
        text.chars().take(LIMIT).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests;
