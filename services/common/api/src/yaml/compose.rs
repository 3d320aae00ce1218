//! From the parser's events to a tree.

use super::{Entry, MAX_BYTES, MAX_DEPTH, MAX_NODES, Node, NodeKind, Pos, Scalar, cut};
use crate::config::ConfigError;
use granit_parser::{Event, Marker, Parser, ScalarStyle, StrInput, Tag};
use std::collections::{HashMap, HashSet};

type Result<T> = std::result::Result<T, ConfigError>;

/// Reads one document. `None` when the file holds none (empty, or nothing but comments).
///
/// # Errors
/// Too large, not UTF-8, not YAML, more than one document, too deep or too many values, a key that is no scalar, an
/// alias that contains itself, an unknown tag.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Node>> {
    let options = granit_parser::options! {
        emit_comments: false, flow_nesting_limit: MAX_DEPTH, block_nesting_limit: MAX_DEPTH
    };
    let mut composer = Composer {
        events: Parser::new_from_str_with_options(text(bytes)?, options),
        anchors: HashMap::new(),
        nodes: 0,
    };
    let (mut documents, mut root) = (0, None);
    while let Some((event, pos)) = composer.next()? {
        match event {
            Event::DocumentStart(..) if documents > 0 => {
                return fail(pos, "the file holds more than one YAML document");
            }
            Event::DocumentStart(..) => documents += 1,
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(..) => {
                root = Some(composer.node(event, pos, 0)?);
            }
            _ => {}
        }
    }
    Ok(root)
}

/// The text of a file, without a byte order mark.
///
/// # Errors
/// Too large or not UTF-8; quotes nothing of the file.
pub(crate) fn text(bytes: &[u8]) -> Result<&str> {
    if bytes.len() > MAX_BYTES {
        let size = bytes.len();
        return fail(
            Pos::START,
            format!("the file has {size} bytes; the limit is {MAX_BYTES}"),
        );
    }
    let text = std::str::from_utf8(bytes).or_else(|error| not_utf8(bytes, error.valid_up_to()))?;
    Ok(text.trim_start_matches('\u{feff}'))
}

fn at(marker: Marker) -> Pos {
    Pos {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

fn not_utf8<T>(bytes: &[u8], valid: usize) -> Result<T> {
    let before = String::from_utf8_lossy(bytes.get(..valid).unwrap_or_default());
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    fail(Pos { line, column }, "the file is not UTF-8")
}

struct Composer<'t> {
    events: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    /// Nodes so far, those of aliases included.
    nodes: usize,
}

impl<'t> Composer<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Pos)>> {
        match self.events.next() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, at(span.start)))),
            Some(Err(error)) => fail(at(*error.marker()), error.info()),
        }
    }

    /// The next child of a collection that began at `start`; `None` at its end.
    fn child(&mut self, start: Pos, above: usize) -> Result<Option<Node>> {
        match self.next()? {
            Some((Event::SequenceEnd | Event::MappingEnd, _)) => Ok(None),
            Some((event, pos)) => self.node(event, pos, above).map(Some),
            None => fail(start, "the file ends within this value"),
        }
    }

    /// The node that begins with this event, below this many collections.
    fn node(&mut self, event: Event<'t>, pos: Pos, above: usize) -> Result<Node> {
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.admit(1, above, pos)?;
                let tagged_text = core_tag(tag.as_deref(), pos)? == Some("str");
                let scalar = Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain && !tagged_text,
                };
                (NodeKind::Scalar(scalar), anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.admit(1, above + 1, pos)?;
                core_tag(tag.as_deref(), pos)?;
                let mut items = Vec::new();
                while let Some(item) = self.child(pos, above + 1)? {
                    items.push(item);
                }
                (NodeKind::Sequence(items), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.admit(1, above + 1, pos)?;
                core_tag(tag.as_deref(), pos)?;
                (self.mapping(pos, above + 1)?, anchor)
            }
            Event::Alias(id) => return self.alias(id, pos, above),
            _ => return fail(pos, "a value is missing"),
        };
        let node = Node { pos, kind };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn mapping(&mut self, start: Pos, above: usize) -> Result<NodeKind> {
        let (mut entries, mut merges) = (Vec::new(), Vec::new());
        while let Some(Node { pos, kind }) = self.child(start, above)? {
            let NodeKind::Scalar(key) = kind else {
                return fail(pos, "a key must be a text, not a collection");
            };
            let Some(value) = self.child(start, above)? else {
                return fail(pos, "the key has no value");
            };
            if key.plain && key.text == "<<" {
                merges.push(value);
            } else {
                entries.push(Entry {
                    key: key.text,
                    key_pos: pos,
                    value,
                });
            }
        }
        merged(entries, merges).map(NodeKind::Mapping)
    }

    fn alias(&mut self, id: usize, pos: Pos, above: usize) -> Result<Node> {
        let Some(node) = self.anchors.get(&id).cloned() else {
            return fail(pos, "the alias refers to a value that contains it");
        };
        // Every copy counts: a chain of aliases grows exponentially.
        let (size, depth) = node.size_and_depth();
        self.admit(size, above + depth, pos)?;
        // What is wrong with it is wrong here, where it is used.
        Ok(Node { pos, ..node })
    }

    /// Counts new nodes, the deepest within `depth` collections.
    fn admit(&mut self, nodes: usize, depth: usize, pos: Pos) -> Result<()> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return fail(
                pos,
                format!("the file holds more than {MAX_NODES} values, aliases expanded"),
            );
        }
        if depth > MAX_DEPTH {
            return fail(pos, format!("the file is nested deeper than {MAX_DEPTH} levels"));
        }
        Ok(())
    }
}

/// A mapping's own entries and those of its merged mappings, or lists of them, whose keys are not there yet.
fn merged(mut entries: Vec<Entry>, merges: Vec<Node>) -> Result<Vec<Entry>> {
    if merges.is_empty() {
        return Ok(entries);
    }
    let mut keys: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    let mut add = |source: Node| match source.kind {
        NodeKind::Mapping(more) => {
            entries.extend(more.into_iter().filter(|entry| keys.insert(entry.key.clone())));
            Ok(())
        }
        _ => fail(source.pos, "<< can merge mappings only"),
    };
    for source in merges {
        match source.kind {
            NodeKind::Sequence(sources) => sources.into_iter().try_for_each(&mut add)?,
            _ => add(source)?,
        }
    }
    Ok(entries)
}

impl Node {
    /// How many nodes there are, this one included, and how many collections are within each other.
    fn size_and_depth(&self) -> (usize, usize) {
        let children: Vec<&Self> = match &self.kind {
            NodeKind::Scalar(_) => return (1, 0),
            NodeKind::Sequence(items) => items.iter().collect(),
            NodeKind::Mapping(entries) => entries.iter().map(|entry| &entry.value).collect(),
        };
        let below = children.into_iter().map(Self::size_and_depth);
        below.fold((1, 1), |(size, depth), (more, height)| {
            (size + more, depth.max(height + 1))
        })
    }
}

/// The name of a tag of YAML's core schema; any other tag is refused, because what it means is not known.
fn core_tag(tag: Option<&Tag>, pos: Pos) -> Result<Option<&str>> {
    let Some(tag) = tag else { return Ok(None) };
    match tag.core_suffix() {
        Some(name @ ("str" | "int" | "float" | "bool" | "null" | "seq" | "map")) => Ok(Some(name)),
        _ => fail(pos, format!("the tag {:?} is not known", cut(tag.suffix()))),
    }
}

fn fail<T>(pos: Pos, message: impl Into<String>) -> Result<T> {
    Err(ConfigError::new(pos, "", message))
}
