//! YAML (and so JSON) as a tree whose every key and value knows its place, built on granit-parser's events.
//!
//! No crate's tree keeps what a configuration file needs: every duplicate key with its place, and scalars as they are
//! written (ADR 0022).
//!
//! Input is bounded: [`MAX_BYTES`], [`MAX_DEPTH`] and [`MAX_NODES`], the last two counted after aliases are expanded.

mod compose;

pub(crate) use compose::{parse, text};

/// Largest file that is read: the size limit of a ConfigMap or Secret.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting; a configuration file has 7 levels, a kubeconfig 5.
pub(crate) const MAX_DEPTH: usize = 32;
/// Most values in a file, aliases expanded.
pub(crate) const MAX_NODES: usize = 100_000;

/// A place in a file; both numbers start at 1, columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pos {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// A value and where it begins.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) pos: Pos,
    pub(crate) kind: NodeKind,
}

#[derive(Clone, Debug)]
pub(crate) enum NodeKind {
    Scalar(Scalar),
    Sequence(Vec<Node>),
    /// In the file's order, duplicates included, merge keys (`<<`) expanded.
    Mapping(Vec<Entry>),
}

/// A scalar as it is written, escapes resolved.
#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Neither quoted nor a block: may mean null, a boolean or a number.
    pub(crate) plain: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_pos: Pos,
    pub(crate) value: Node,
}

// === impl Pos ===

impl Pos {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

// === impl Node ===

impl Node {
    /// Null in any of YAML's notations.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar(scalar) if scalar.is_null())
    }

    /// The value as a text, if it is a scalar other than null.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar(scalar) if !scalar.is_null() => Some(&scalar.text),
            _ => None,
        }
    }

    /// The value as a boolean.
    pub(crate) fn as_bool(&self) -> Option<bool> {
        let NodeKind::Scalar(Scalar { text, plain: true }) = &self.kind else {
            return None;
        };
        // The last four are YAML 1.1, which Go's YAML libraries for Kubernetes still read.
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    /// The kind of value, for messages: `a mapping`, `a list`, `the number 7`, ...
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            NodeKind::Sequence(_) => "a list".to_owned(),
            NodeKind::Mapping(_) => "a mapping".to_owned(),
            NodeKind::Scalar(scalar) if scalar.is_null() => "nothing".to_owned(),
            NodeKind::Scalar(scalar) => format!("{:?}", cut(&scalar.text)),
        }
    }
}

// === impl Scalar ===

impl Scalar {
    fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
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
