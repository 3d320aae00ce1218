//! Typed access to a located tree. Whatever is wrong is put down and reading goes on.

use super::{ConfigError, ConfigErrors};
use crate::{
    duration,
    yaml::{self, Entry, Kind, Node, Pos, cut},
};
use std::{cell::RefCell, collections::BTreeMap, ops::RangeInclusive, time::Duration};

/// Longest duration that a configuration may ask for; more is a slip of the unit.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// Most errors that are reported; a file of another kind has one in every line.
const MAX_ERRORS: usize = 100;

/// Collects errors.
#[derive(Default)]
pub(crate) struct Sink(RefCell<Vec<ConfigError>>);

/// A field that a section may have.
pub(crate) struct Field {
    /// Its name.
    pub(crate) name: &'static str,
    /// Names that older releases of DWD used.
    pub(crate) aliases: &'static [&'static str],
}

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
    fields: BTreeMap<&'static str, Value<'d>>,
}

/// Reads a file whose root is a mapping. `convert` reports through the values that it is given; what it returns counts
/// only if nothing was reported.
pub(crate) fn read<T>(
    bytes: &[u8],
    convert: impl FnOnce(&Value<'_>) -> Option<T>,
) -> Result<T, ConfigErrors> {
    let whole = |pos: Pos, message: String| {
        let error = ConfigError {
            line: pos.line,
            column: pos.column,
            path: String::new(),
            message,
        };
        ConfigErrors::new(vec![error])
    };
    let root = match yaml::parse(bytes) {
        Ok(Some(root)) if !root.is_null() => root,
        Ok(_) => return Err(whole(Pos::START, "the file is empty".to_owned())),
        Err(error) => return Err(whole(error.pos, error.message)),
    };
    let sink = Sink::default();
    let result = convert(&Value {
        node: &root,
        path: String::new(),
        sink: &sink,
    });
    let errors = sink.0.into_inner();
    match result {
        Some(result) if errors.is_empty() => Ok(result),
        _ if errors.is_empty() => Err(whole(Pos::START, "the file cannot be read".to_owned())),
        _ => Err(ConfigErrors::new(errors)),
    }
}

// === impl Sink ===

impl Sink {
    fn is_full(&self) -> bool {
        self.0.borrow().len() > MAX_ERRORS
    }

    fn add(&self, pos: Pos, path: String, message: String) {
        let mut errors = self.0.borrow_mut();
        let (path, message) = match errors.len() {
            len if len < MAX_ERRORS => (path, message),
            MAX_ERRORS => (
                String::new(),
                "there are more errors; they are not shown".to_owned(),
            ),
            _ => return,
        };
        errors.push(ConfigError {
            line: pos.line,
            column: pos.column,
            path,
            message,
        });
    }
}

// === impl Field ===

impl Field {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, aliases: &[] }
    }

    pub(crate) const fn with_aliases(name: &'static str, aliases: &'static [&'static str]) -> Self {
        Self { name, aliases }
    }

    /// Go's JSON decoder, by which DWD reads its files, does not look at the case of a name.
    fn is_named(&self, key: &str) -> bool {
        self.names().any(|name| name.eq_ignore_ascii_case(key))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

// === impl Value ===

impl<'d> Value<'d> {
    /// Reports something wrong with this value.
    pub(crate) fn error(&self, message: impl Into<String>) {
        self.error_at(self.node.pos, self.path.clone(), message.into());
    }

    fn error_at(&self, pos: Pos, path: String, message: String) {
        self.sink.add(pos, path, message);
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
        let Kind::Mapping(entries) = &self.node.kind else {
            return self.wrong("a mapping");
        };
        let mut fields: BTreeMap<&'static str, Value<'d>> = BTreeMap::new();
        let mut seen: BTreeMap<&'static str, &Entry> = BTreeMap::new();
        for entry in entries {
            let Some(field) = known.iter().find(|field| field.is_named(&entry.key)) else {
                self.unknown(entry, known);
                continue;
            };
            if let Some(first) = seen.get(field.name) {
                self.repeated(entry, first);
                continue;
            }
            seen.insert(field.name, entry);
            // Null is how Go writes a field that is not set.
            if !entry.value.is_null() {
                fields.insert(field.name, self.child(&entry.key, &entry.value));
            }
        }
        Some(Section {
            at: self.clone(),
            fields,
        })
    }

    /// The entries of a mapping whose keys are free; repeated ones are reported.
    pub(crate) fn entries(&self) -> Option<Vec<(&'d str, Self)>> {
        let Kind::Mapping(entries) = &self.node.kind else {
            return self.wrong("a mapping");
        };
        let mut seen: BTreeMap<&str, &Entry> = BTreeMap::new();
        let mut found = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(first) = seen.get(entry.key.as_str()) {
                self.repeated(entry, first);
                continue;
            }
            seen.insert(&entry.key, entry);
            found.push((entry.key.as_str(), self.child(&entry.key, &entry.value)));
        }
        Some(found)
    }

    /// The values of a list.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        let Kind::Sequence(items) = &self.node.kind else {
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
        match text.parse::<i128>() {
            Ok(number) => match i32::try_from(number).ok().filter(|number| range.contains(number)) {
                Some(number) => Some(number),
                None => {
                    self.error(format!(
                        "must be from {} to {}, not {text}",
                        range.start(),
                        range.end()
                    ));
                    None
                }
            },
            Err(_) => self.wrong("a whole number"),
        }
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
        if duration < min {
            self.error(format!(
                "must be at least {}, not {}",
                duration::format(min),
                cut(text)
            ));
            return None;
        }
        if duration > MAX_DURATION {
            self.error(format!(
                "must be at most {}, not {}",
                duration::format(MAX_DURATION),
                cut(text)
            ));
            return None;
        }
        Some(duration)
    }

    fn plain_text(&self, wanted: &str) -> Option<&'d str> {
        match &self.node.kind {
            Kind::Scalar(scalar) if scalar.plain => self.node.as_text().or_else(|| self.wrong(wanted)),
            Kind::Scalar(scalar) => {
                self.error(format!("must be {wanted}, not the text {:?}", cut(&scalar.text)));
                None
            }
            _ => self.wrong(wanted),
        }
    }

    fn unknown(&self, entry: &Entry, known: &[Field]) {
        if self.sink.is_full() {
            return;
        }
        let path = joined(&self.path, &entry.key);
        let message = match nearest(&entry.key, known) {
            Some(name) => format!("unknown field; did you mean {name:?}?"),
            None => "unknown field".to_owned(),
        };
        self.error_at(entry.key_pos, path, message);
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
    let names = known
        .iter()
        .flat_map(Field::names)
        .map(|name| (score(name), name));
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
