//! Typed access to a located tree. Reading goes on after an error, so that all of them are reported.

use super::ConfigErrors;
use crate::{
    config_error::{ConfigError, Pos},
    duration,
    yaml::{self, Node, NodeKind, cut},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fmt,
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

/// A file while it is read, and what was found in it.
struct File<'d> {
    text: &'d str,
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
    file: &'d File<'d>,
}

/// A mapping with known fields.
pub(crate) struct Section<'d> {
    /// The mapping itself.
    at: Value<'d>,
    fields: BTreeMap<&'d str, Value<'d>>,
}

/// Reads a file whose root is a mapping. `convert` reports through the values that it is given; what it returns counts
/// only if nothing was reported.
pub(crate) fn read<T>(
    bytes: &[u8],
    unknown: UnknownFields,
    convert: impl FnOnce(&Value<'_>) -> Option<T>,
) -> Result<Parsed<T>, ConfigErrors> {
    let failed = |error| ConfigErrors::new(vec![error]);
    let text = yaml::text(bytes).map_err(failed)?;
    let (root, repeated) = yaml::parse(text).map_err(failed)?;
    if matches!(root.kind, NodeKind::Null) {
        return Err(failed(ConfigError::new(Pos::START, "", "the file is empty")));
    }
    let file = File {
        text,
        errors: RefCell::default(),
        ignored: (unknown == UnknownFields::Ignored).then(RefCell::default),
    };
    let result = convert(&Value {
        node: &root,
        path: String::new(),
        file: &file,
    });
    let mut errors = file.errors.into_inner();
    if errors.is_empty() {
        // It is below an unknown field, or it is a number, of which the tree has the last only.
        errors.extend(repeated);
    }
    match result {
        Some(config) if errors.is_empty() => {
            let ignored = file.ignored.map(RefCell::into_inner).unwrap_or_default();
            let ignored = (!ignored.is_empty()).then(|| ConfigErrors::new(ignored));
            Ok(Parsed { config, ignored })
        }
        _ => Err(ConfigErrors::new(errors)),
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
        add(&self.file.errors, pos, path, message);
    }

    fn wrong<T>(&self, wanted: &str) -> Option<T> {
        let found = match self.node.kind {
            NodeKind::Null => "nothing".to_owned(),
            NodeKind::Sequence(_) => "a list".to_owned(),
            NodeKind::Mapping(_) => "a mapping".to_owned(),
            NodeKind::Plain | NodeKind::Text(_) => {
                let text = self.scalar().map(|(text, _)| text);
                format!("{:?}", cut(text.unwrap_or_default()))
            }
        };
        self.error(format!("must be {wanted}, not {found}"));
        None
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// A scalar other than null, and true if it stands there without quotes.
    fn scalar(&self) -> Option<(&'d str, bool)> {
        match self.node.kind {
            NodeKind::Null => None,
            _ => self.node.scalar(self.file.text),
        }
    }

    fn child(&self, path: String, node: &'d Node) -> Self {
        Self {
            node,
            path,
            file: self.file,
        }
    }

    /// The mapping with these fields; unknown and repeated ones are reported.
    pub(crate) fn section(&self, known: &'static [Field]) -> Option<Section<'d>> {
        // Go's JSON decoder, by which DWD reads its files, does not look at the case of a name.
        let is_named = |names: &Field, key: &str| names.iter().any(|name| name.eq_ignore_ascii_case(key));
        let fields = self.distinct(|key, pos| {
            let names = known.iter().find(|names| is_named(names, key));
            if names.is_none() {
                self.unknown(key, pos, known);
            }
            names.and_then(|names| names.first().copied())
        })?;
        // Null is how Go writes a field that is not set.
        let is_set = |(_, value): &(_, Self)| !matches!(value.node.kind, NodeKind::Null);
        Some(Section {
            at: self.clone(),
            fields: fields.into_iter().filter(is_set).collect(),
        })
    }

    /// The entries of a mapping whose keys are free; repeated ones are reported.
    pub(crate) fn entries(&self) -> Option<Vec<(&'d str, Self)>> {
        self.distinct(|key, _| Some(key))
    }

    /// The entries of a mapping by the names of their keys; repeated ones are reported, those without a name left out.
    fn distinct(&self, name: impl Fn(&'d str, Pos) -> Option<&'d str>) -> Option<Vec<(&'d str, Self)>> {
        let NodeKind::Mapping(entries) = &self.node.kind else {
            return self.wrong("a mapping");
        };
        let mut seen: HashMap<&str, (&str, Pos)> = HashMap::new();
        let mut found = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let pos = key.pos;
            let Some((key, _)) = key.scalar(self.file.text) else {
                let message = "a key must be a text, not a collection";
                self.error_at(pos, self.path.clone(), message.to_owned());
                continue;
            };
            let Some(name) = name(key, pos) else {
                continue;
            };
            let path = joined(&self.path, key);
            if let Some((first, Pos { line, .. })) = seen.get(name) {
                let message = if *first == key {
                    format!("is given twice, first in line {line}")
                } else {
                    format!("is the same field as {:?} in line {line}", cut(first))
                };
                self.error_at(pos, path, message);
                continue;
            }
            seen.insert(name, (key, pos));
            found.push((name, self.child(path, value)));
        }
        Some(found)
    }

    /// The values of a list.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        let NodeKind::Sequence(items) = &self.node.kind else {
            return self.wrong("a list");
        };
        let item = |(index, node)| self.child(format!("{}[{index}]", self.path), node);
        Some(items.iter().enumerate().map(item).collect())
    }

    /// A text; numbers and booleans count as what is written.
    pub(crate) fn text(&self) -> Option<&'d str> {
        let text = self.scalar().map(|(text, _)| text);
        text.or_else(|| self.wrong("a text"))
    }

    pub(crate) fn boolean(&self) -> Option<bool> {
        let plain = self.scalar().filter(|(_, is_plain)| *is_plain);
        // The last two of each are YAML 1.1, which Go's YAML libraries for Kubernetes still read.
        match plain.map(|(text, _)| text.to_ascii_lowercase()).as_deref() {
            Some("true" | "yes" | "on") => Some(true),
            Some("false" | "no" | "off") => Some(false),
            _ => self.wrong("true or false"),
        }
    }

    /// A whole number within the range.
    pub(crate) fn integer<N>(&self, range: RangeInclusive<N>) -> Option<N>
    where
        N: TryFrom<i128> + PartialOrd + fmt::Display,
    {
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
        let number = N::try_from(number).ok().filter(|number| range.contains(number));
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
        let Some((text, _)) = self.scalar() else {
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
        match self.scalar() {
            Some((text, true)) => Some(text),
            Some((text, false)) => {
                self.error(format!("must be {wanted}, not the text {:?}", cut(text)));
                None
            }
            None => self.wrong(wanted),
        }
    }

    fn unknown(&self, key: &str, pos: Pos, known: &[Field]) {
        let found = self.file.ignored.as_ref().unwrap_or(&self.file.errors);
        // The search for a similar name takes time.
        if found.borrow().len() > MAX_ERRORS {
            return;
        }
        let message = match nearest(key, known) {
            _ if self.path.is_empty() && OF_VERSION_0.contains(&key) => format!(
                "this is a file for dependency-watchdog 0.x, which has no {key:?} any more; docs/configuration.md has the \
                 format of today"
            ),
            Some(name) => format!("unknown field; did you mean {name:?}?"),
            None => "unknown field".to_owned(),
        };
        add(found, pos, joined(&self.path, key), message);
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
            let path = joined(&self.at.path, name);
            self.at.error_at(self.at.node.pos, path, "is required".to_owned());
        }
        value
    }

    /// The field's value as `convert` reads it, or the default when it is absent (or wrong, which was reported then).
    pub(crate) fn or<T>(&self, name: &str, default: T, convert: impl FnOnce(&Value<'d>) -> Option<T>) -> T {
        self.get(name).and_then(convert).unwrap_or(default)
    }
}

/// What the files of dependency-watchdog 0.x begin with.
const OF_VERSION_0: [&str; 2] = ["probes", "services"];

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
