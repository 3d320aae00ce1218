//! Typed access to a located tree. Whatever is wrong is put down and reading goes on.

use super::{ConfigError, ConfigErrors};
use crate::{
    duration,
    yaml::{self, Entry, Node, NodeKind, Pos, cut},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    time::Duration,
};

/// Longest duration that a configuration may ask for; more is a slip of the unit.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// Most errors that are reported; a file of another kind has one in every line.
const MAX_ERRORS: usize = 100;

/// How fields are treated that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// They are errors.
    Refused,
    /// They are left out, for files that somebody else writes for several versions.
    Ignored,
}

/// A configuration as it was read.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// The configuration.
    pub config: T,
    /// The unknown fields that were left out, if any.
    pub ignored: Option<ConfigErrors>,
}

/// Collects errors.
#[derive(Default)]
pub(crate) struct Sink {
    errors: RefCell<Vec<ConfigError>>,
    /// The unknown fields, where they are no errors.
    ignored: Option<RefCell<Vec<ConfigError>>>,
}

/// The names of a field that a section may have: its own, and those that older releases of DWD used.
pub(crate) type Field = &'static [&'static str];

/// A value in the file, with the way to it.
#[derive(Clone)]
pub(crate) struct Value<'d> {
    node: &'d Node,
    path: String,
    sink: &'d Sink,
}

/// A mapping with known fields.
pub(crate) struct Section<'d> {
    /// The mapping itself.
    pub(crate) at: Value<'d>,
    fields: BTreeMap<&'d str, Value<'d>>,
}

/// Reads a file whose root is a mapping. `convert` reports through the values that it is given; what it returns counts
/// only if nothing was reported.
pub(crate) fn read<T>(
    bytes: &[u8],
    unknown: UnknownFields,
    convert: impl FnOnce(&Value<'_>) -> Option<T>,
) -> Result<Parsed<T>, ConfigErrors> {
    let failed = |error| Err(ConfigErrors::new(vec![error]));
    let root = match yaml::parse(bytes) {
        Ok(Some(root)) if !root.is_null() => root,
        Ok(_) => return failed(ConfigError::new(Pos::START, "", "the file is empty")),
        Err(error) => return failed(error),
    };
    let sink = Sink {
        ignored: (unknown == UnknownFields::Ignored).then(RefCell::default),
        ..Sink::default()
    };
    let result = convert(&Value {
        node: &root,
        path: String::new(),
        sink: &sink,
    });
    match (result, sink.errors.into_inner()) {
        (Some(config), errors) if errors.is_empty() => {
            let ignored = sink.ignored.map(RefCell::into_inner).unwrap_or_default();
            let ignored = (!ignored.is_empty()).then(|| ConfigErrors::new(ignored));
            Ok(Parsed { config, ignored })
        }
        (None, errors) if errors.is_empty() => {
            failed(ConfigError::new(Pos::START, "", "the file cannot be read"))
        }
        (_, errors) => Err(ConfigErrors::new(errors)),
    }
}

// === impl Sink ===

impl Sink {
    fn unknown(&self) -> &RefCell<Vec<ConfigError>> {
        self.ignored.as_ref().unwrap_or(&self.errors)
    }
}

fn add(found: &RefCell<Vec<ConfigError>>, pos: Pos, path: String, message: String) {
    let mut found = found.borrow_mut();
    match found.len() {
        len if len < MAX_ERRORS => found.push(ConfigError::new(pos, path, message)),
        MAX_ERRORS => {
            let more = "there are more errors; they are not shown";
            found.push(ConfigError::new(pos, "", more));
        }
        _ => {}
    }
}

// === impl Value ===

impl<'d> Value<'d> {
    /// Reports something wrong with this value.
    pub(crate) fn error(&self, message: impl Into<String>) {
        self.error_at(self.node.pos, self.path.clone(), message.into());
    }

    fn error_at(&self, pos: Pos, path: String, message: String) {
        add(&self.sink.errors, pos, path, message);
    }

    fn wrong<T>(&self, wanted: &str) -> Option<T> {
        self.error(format!("must be {wanted}, not {}", self.node.describe()));
        None
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    fn child(&self, key: &str, node: &'d Node) -> Self {
        Self {
            node,
            path: joined(&self.path, key),
            sink: self.sink,
        }
    }

    /// The mapping with these fields; unknown and repeated ones are reported.
    pub(crate) fn section(&self, known: &'static [Field]) -> Option<Section<'d>> {
        // Go's JSON decoder, by which DWD reads its files, does not look at the case of a name.
        let is_named = |names: &Field, key: &str| names.iter().any(|name| name.eq_ignore_ascii_case(key));
        let fields = self.distinct(|entry| {
            let names = known.iter().find(|names| is_named(names, &entry.key));
            if names.is_none() {
                self.unknown(entry, known);
            }
            names.and_then(|names| names.first().copied())
        })?;
        // Null is how Go writes a field that is not set.
        let set = fields.into_iter().filter(|(_, value)| !value.node.is_null());
        Some(Section {
            at: self.clone(),
            fields: set.collect(),
        })
    }

    /// The entries of a mapping whose keys are free; repeated ones are reported.
    pub(crate) fn entries(&self) -> Option<Vec<(&'d str, Self)>> {
        self.distinct(|entry| Some(&entry.key))
    }

    /// The entries of a mapping by the names of their keys; repeated ones are reported, those without a name left out.
    fn distinct(&self, name: impl Fn(&'d Entry) -> Option<&'d str>) -> Option<Vec<(&'d str, Self)>> {
        let NodeKind::Mapping(entries) = &self.node.kind else {
            return self.wrong("a mapping");
        };
        let mut seen: HashMap<&str, &Entry> = HashMap::new();
        let mut found = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(name) = name(entry) else {
                continue;
            };
            if let Some(first) = seen.get(name) {
                self.repeated(entry, first);
                continue;
            }
            seen.insert(name, entry);
            found.push((name, self.child(&entry.key, &entry.value)));
        }
        Some(found)
    }

    /// The values of a list.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        let NodeKind::Sequence(items) = &self.node.kind else {
            return self.wrong("a list");
        };
        let item = |(index, node)| Self {
            node,
            path: format!("{}[{index}]", self.path),
            sink: self.sink,
        };
        Some(items.iter().enumerate().map(item).collect())
    }

    pub(crate) fn is_empty_text(&self) -> bool {
        self.node.as_text() == Some("")
    }

    /// A text; numbers and booleans count as what is written.
    pub(crate) fn text(&self) -> Option<&'d str> {
        self.node.as_text().or_else(|| self.wrong("a text"))
    }

    pub(crate) fn boolean(&self) -> Option<bool> {
        self.node.as_bool().or_else(|| self.wrong("true or false"))
    }

    /// A whole number within the range.
    pub(crate) fn integer(&self, range: RangeInclusive<i32>) -> Option<i32> {
        let text = self.plain_text("a whole number")?;
        // Octal for Go's YAML libraries, decimal for others.
        if text
            .trim_start_matches(['+', '-'])
            .strip_prefix('0')
            .is_some_and(|rest| !rest.is_empty())
        {
            return self.wrong("a whole number without leading zeros");
        }
        let Ok(number) = text.parse::<i128>() else {
            return self.wrong("a whole number");
        };
        let number = i32::try_from(number).ok().filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = range.into_inner();
            self.error(format!("must be from {least} to {most}, not {text}"));
        }
        number
    }

    /// A finite number.
    pub(crate) fn number(&self) -> Option<f64> {
        let text = self.plain_text("a number")?;
        // Rust would also read `inf`, `nan` and `infinity`.
        let numeric = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        match text.parse::<f64>() {
            Ok(number) if numeric && number.is_finite() => Some(number),
            _ => self.wrong("a number"),
        }
    }

    /// A duration in Go's notation, at least `min`.
    pub(crate) fn duration(&self, min: Duration) -> Option<Duration> {
        let Some(text) = self.node.as_text() else {
            return self.wrong("a duration such as 30s or 1m30s");
        };
        let duration = match duration::parse(text) {
            Ok(duration) => duration,
            Err(error) => {
                self.error(error.to_string());
                return None;
            }
        };
        let (bound, limit) = match duration {
            short if short < min => ("least", min),
            long if long > MAX_DURATION => ("most", MAX_DURATION),
            _ => return Some(duration),
        };
        let limit = duration::format(limit);
        self.error(format!("must be at {bound} {limit}, not {}", cut(text)));
        None
    }

    fn plain_text(&self, wanted: &str) -> Option<&'d str> {
        match &self.node.kind {
            NodeKind::Scalar(scalar) if scalar.plain => self.node.as_text().or_else(|| self.wrong(wanted)),
            NodeKind::Scalar(scalar) => {
                self.error(format!("must be {wanted}, not the text {:?}", cut(&scalar.text)));
                None
            }
            _ => self.wrong(wanted),
        }
    }

    fn unknown(&self, entry: &Entry, known: &[Field]) {
        let found = self.sink.unknown();
        // The search for a similar name takes time.
        if found.borrow().len() > MAX_ERRORS {
            return;
        }
        let path = joined(&self.path, &entry.key);
        let message = match nearest(&entry.key, known) {
            Some(name) => format!("unknown field; did you mean {name:?}?"),
            None => "unknown field".to_owned(),
        };
        add(found, entry.key_pos, path, message);
    }

    fn repeated(&self, entry: &Entry, first: &Entry) {
        let path = joined(&self.path, &entry.key);
        let line = first.key_pos.line;
        let message = if first.key == entry.key {
            format!("is given twice, first in line {line}")
        } else {
            format!("is the same field as {:?} in line {line}", cut(&first.key))
        };
        self.error_at(entry.key_pos, path, message);
    }
}

// === impl Section ===

impl<'d> Section<'d> {
    /// The field's value, unless it is absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value<'d>> {
        self.fields.get(name)
    }

    /// The field's value; its absence is reported.
    pub(crate) fn required(&self, name: &str) -> Option<&Value<'d>> {
        let value = self.get(name);
        if value.is_none() {
            self.at.error_at(
                self.at.node.pos,
                joined(&self.at.path, name),
                "is required".to_owned(),
            );
        }
        value
    }

    /// The field's value as `convert` reads it, or the default when it is absent (or wrong, which was reported then).
    pub(crate) fn or<T>(&self, name: &str, default: T, convert: impl FnOnce(&Value<'d>) -> Option<T>) -> T {
        self.get(name).and_then(convert).unwrap_or(default)
    }
}

/// The known name that a misspelt key most likely means.
fn nearest(key: &str, known: &[Field]) -> Option<&'static str> {
    const LIKELY: f64 = 0.7;
    let key = key.to_ascii_lowercase();
    // Similarity is quadratic in the length, and no field has a longer name.
    if key.len() > 100 {
        return None;
    }
    let score = |name: &str| strsim::normalized_damerau_levenshtein(&key, &name.to_ascii_lowercase());
    let names = known.iter().copied().flatten().map(|name| (score(name), *name));
    let best = names.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= LIKELY).then_some(best.1)
}

/// A path with one more step; keys that would be ambiguous are quoted.
fn joined(path: &str, key: &str) -> String {
    let simple = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    match (path.is_empty(), simple) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{:?}]", cut(key)),
    }
}
