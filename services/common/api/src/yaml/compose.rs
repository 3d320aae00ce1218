//! From the parser's events to a tree.

use super::{Entry, Kind, MAX_BYTES, MAX_DEPTH, MAX_NODES, Node, Pos, Scalar, YamlError, cut};
use granit_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use std::collections::{HashMap, HashSet};

/// Reads one document. `None` when the file holds none (empty, or nothing but comments).
///
/// # Errors
/// Too large, not UTF-8, not YAML, more than one document, too deep or too many values, a key that is no scalar, an
/// alias that contains itself, an unknown tag.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Node>, YamlError> {
    if bytes.len() > MAX_BYTES {
        let message = format!("the file has {} bytes; the limit is {MAX_BYTES}", bytes.len());
        return Err(YamlError {
            pos: Pos::START,
            message,
        });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
    let limit = usize::try_from(MAX_DEPTH).unwrap_or(usize::MAX);
    let options = granit_parser::options! { emit_comments: false, flow_nesting_limit: limit, block_nesting_limit: limit };
    let mut composer = Composer::default();
    for event in Parser::new_from_str_with_options(text.trim_start_matches('\u{feff}'), options) {
        let (event, span) = event.map_err(|error| YamlError {
            pos: at(*error.marker()),
            message: error.info(),
        })?;
        composer.take(event, at(span.start))?;
    }
    Ok(composer.root)
}

fn at(marker: Marker) -> Pos {
    Pos {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

fn not_utf8(bytes: &[u8], valid: usize) -> YamlError {
    let before = String::from_utf8_lossy(bytes.get(..valid).unwrap_or_default());
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    YamlError {
        pos: Pos { line, column },
        message: "the file is not UTF-8".to_owned(),
    }
}

#[derive(Default)]
struct Composer {
    open: Vec<Frame>,
    root: Option<Node>,
    anchors: HashMap<usize, Node>,
    documents: usize,
    /// Nodes so far, expanded ones included.
    nodes: u32,
}

/// A collection that is not complete yet.
struct Frame {
    pos: Pos,
    anchor: usize,
    content: Content,
}

enum Content {
    Sequence(Vec<Node>),
    Mapping(Mapping),
}

#[derive(Default)]
struct Mapping {
    entries: Vec<Entry>,
    /// The key whose value comes next.
    key: Option<(Scalar, Pos)>,
    /// Values of `<<`.
    merges: Vec<Node>,
}

impl Composer {
    fn take(&mut self, event: Event<'_>, pos: Pos) -> Result<(), YamlError> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    fail(pos, "the file holds more than one YAML document")
                } else {
                    Ok(())
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tagged_text = core_tag(tag.as_deref(), pos)? == Some("str");
                let plain = style == ScalarStyle::Plain && !tagged_text;
                self.count(1, pos)?;
                let kind = Kind::Scalar(Scalar {
                    text: text.into_owned(),
                    plain,
                });
                self.add(
                    Node {
                        pos,
                        kind,
                        size: 1,
                        depth: 1,
                    },
                    anchor,
                )
            }
            Event::SequenceStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), pos)?;
                self.open(Frame {
                    pos,
                    anchor,
                    content: Content::Sequence(Vec::new()),
                })
            }
            Event::MappingStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), pos)?;
                self.open(Frame {
                    pos,
                    anchor,
                    content: Content::Mapping(Mapping::default()),
                })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(pos),
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id) else {
                    return fail(pos, "the alias refers to a value that contains it");
                };
                // Looked at before it is copied: a chain of aliases grows exponentially.
                let (size, depth) = (node.size, node.depth);
                self.count(size, pos)?;
                self.check_depth(depth, pos)?;
                let node = self.anchors.get(&id).cloned();
                // What is wrong with it is wrong here, where it is used.
                node.map_or(Ok(()), |node| self.add(Node { pos, ..node }, 0))
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, frame: Frame) -> Result<(), YamlError> {
        self.count(1, frame.pos)?;
        self.check_depth(1, frame.pos)?;
        self.open.push(frame);
        Ok(())
    }

    fn close(&mut self, pos: Pos) -> Result<(), YamlError> {
        let Some(frame) = self.open.pop() else {
            return fail(pos, "unexpected end of a collection");
        };
        let kind = match frame.content {
            Content::Sequence(items) => Kind::Sequence(items),
            Content::Mapping(Mapping { entries, merges, .. }) => Kind::Mapping(merged(entries, merges)?),
        };
        let node = Node::collection(frame.pos, kind);
        self.add(node, frame.anchor)
    }

    /// Puts a complete node where it belongs.
    fn add(&mut self, node: Node, anchor: usize) -> Result<(), YamlError> {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|frame| &mut frame.content) {
            None => self.root = Some(node),
            Some(Content::Sequence(items)) => items.push(node),
            Some(Content::Mapping(mapping)) => match (mapping.key.take(), node.kind) {
                (None, Kind::Scalar(scalar)) => mapping.key = Some((scalar, node.pos)),
                (None, _) => return fail(node.pos, "a key must be a text, not a collection"),
                (Some((key, _)), kind) if key.plain && key.text == "<<" => {
                    mapping.merges.push(Node { kind, ..node });
                }
                (Some((key, key_pos)), kind) => {
                    mapping.entries.push(Entry {
                        key: key.text,
                        key_pos,
                        value: Node { kind, ..node },
                    });
                }
            },
        }
        Ok(())
    }

    fn count(&mut self, nodes: u32, pos: Pos) -> Result<(), YamlError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            return fail(
                pos,
                format!("the file holds more than {MAX_NODES} values, aliases expanded"),
            );
        }
        Ok(())
    }

    /// Whether a node of this height fits below the open collections.
    fn check_depth(&self, height: u32, pos: Pos) -> Result<(), YamlError> {
        let above = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        if above.saturating_add(height) > MAX_DEPTH {
            return fail(pos, format!("the file is nested deeper than {MAX_DEPTH} levels"));
        }
        Ok(())
    }
}

/// A mapping's own entries and those of its merged mappings, or lists of them, whose keys are not there yet.
fn merged(mut entries: Vec<Entry>, merges: Vec<Node>) -> Result<Vec<Entry>, YamlError> {
    if merges.is_empty() {
        return Ok(entries);
    }
    let mut keys: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    let mut add = |source: Node| match source.kind {
        Kind::Mapping(more) => {
            entries.extend(more.into_iter().filter(|entry| keys.insert(entry.key.clone())));
            Ok(())
        }
        _ => fail(source.pos, "<< can merge mappings only"),
    };
    for source in merges {
        match source.kind {
            Kind::Sequence(sources) => sources.into_iter().try_for_each(&mut add)?,
            _ => add(source)?,
        }
    }
    Ok(entries)
}

impl Node {
    fn collection(pos: Pos, kind: Kind) -> Self {
        let (mut size, mut height) = (1_u32, 0_u32);
        let mut measure = |child: &Self| {
            size = size.saturating_add(child.size);
            height = height.max(child.depth);
        };
        match &kind {
            Kind::Scalar(_) => {}
            Kind::Sequence(items) => items.iter().for_each(&mut measure),
            Kind::Mapping(entries) => entries.iter().for_each(|entry| measure(&entry.value)),
        }
        Self {
            pos,
            kind,
            size,
            depth: height.saturating_add(1),
        }
    }
}

/// The name of a tag of YAML's core schema; any other tag is refused, because what it means is not known.
fn core_tag(tag: Option<&Tag>, pos: Pos) -> Result<Option<&str>, YamlError> {
    let Some(tag) = tag else { return Ok(None) };
    match tag.core_suffix() {
        Some(name @ ("str" | "int" | "float" | "bool" | "null" | "seq" | "map")) => Ok(Some(name)),
        _ => fail(pos, format!("the tag {:?} is not known", cut(tag.suffix()))),
    }
}

fn fail<T>(pos: Pos, message: impl Into<String>) -> Result<T, YamlError> {
    Err(YamlError {
        pos,
        message: message.into(),
    })
}
