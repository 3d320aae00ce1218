//! Reading configuration files: serde-saphyr decodes one into its types, and one check reports all that is wrong with
//! their content. Where something is wrong, the file is read once more to find the places.

pub use crate::config_error::{ConfigError, ConfigErrors};

use crate::{
    duration,
    yaml::{self, cut},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor, value::SeqAccessDeserializer},
};
use serde_saphyr::{Location, Spanned};
use std::{
    cell::{LazyCell, RefCell},
    collections::HashMap,
    fmt,
    ops::RangeInclusive,
    time::Duration,
};

/// Longest duration that a field takes. No setting comes near a day; a longer one is a typing error.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// Most faults that are reported: a file of another kind must not flood the log.
const MAX_FAULTS: usize = 100;

/// The treatment of a field that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    /// It is an error: most likely a typing error.
    Refused,
    /// It is left out, and listed in [`Parsed::ignored`]: somebody else writes the file, for several versions.
    Ignored,
}

/// A configuration that was read.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// The configuration.
    pub config: T,
    /// The unknown fields that were left out.
    pub ignored: Option<ConfigErrors>,
}

/// Fields that a file may have under an older name, and that name.
const OLDER_NAMES: [(&str, &str); 5] = [
    ("kubeConfigSecretName", "internalKubeConfigSecretName"),
    ("backoffJitterFactor", "backOffJitterFactor"),
    ("nodeLeaseFailureFraction", "leaseFailureThresholdFraction"),
    (
        "internalProbeFailureBackOffDuration",
        "internalProbeFailureBackoffDuration",
    ),
    (
        "internalProbeFailureBackOffDuration",
        "apiServerProbeFailureBackoffDuration",
    ),
];

/// The path to what is wrong, and what is.
type PathFault = (String, String);

/// The mapping or list of the file that is being checked.
#[derive(Clone)]
pub(crate) struct Section<'f> {
    faults: &'f RefCell<Vec<PathFault>>,
    path: String,
}

/// Reads a file into `F`, and checks that.
///
/// # Errors
/// The first fault of form, or all unknown fields and faults of content.
pub(crate) fn read<F: DeserializeOwned, T>(
    bytes: &[u8],
    unknown: UnknownFields,
    check: impl FnOnce(F, &Section<'_>) -> Option<T>,
) -> Result<Parsed<T>, ConfigErrors> {
    let failed = |error| ConfigErrors::new(vec![error]);
    let text = yaml::text(bytes).map_err(failed)?;
    let mut unknown_fields: Vec<PathFault> = Vec::new();
    let file = serde_saphyr::with_deserializer_from_str_with_options(text, yaml::options(), |yaml| {
        let mut note = |path: serde_ignored::Path<'_>| {
            if unknown_fields.len() <= MAX_FAULTS {
                let path = shown(&path);
                let message = unknown_field(&path).to_owned();
                unknown_fields.push((path, message));
            }
        };
        Option::<F>::deserialize(serde_ignored::Deserializer::new(yaml, &mut note))
    });
    let file = file.map_err(|error| failed(yaml::fault(&error)))?;
    let file = file.ok_or_else(|| failed(ConfigError::of_file((1, 1), "the file is empty")))?;
    let faults = RefCell::default();
    let root = Section {
        faults: &faults,
        path: String::new(),
    };
    let config = check(file, &root);
    let places = LazyCell::new(|| Places::of(text));
    let mut errors = located(faults.into_inner(), |path| places.value(path));
    let mut ignored = located(unknown_fields, |path| places.key(path));
    if unknown == UnknownFields::Refused {
        errors.append(&mut ignored);
    }
    match config {
        Some(config) if errors.is_empty() => Ok(Parsed {
            config,
            ignored: (!ignored.is_empty()).then(|| ConfigErrors::new(ignored)),
        }),
        _ => Err(ConfigErrors::new(errors)),
    }
}

/// The first fields of the files of dependency-watchdog 0.x.
const OF_VERSION_0: [&str; 2] = ["probes", "services"];

fn unknown_field(path: &str) -> &'static str {
    if OF_VERSION_0.contains(&path) {
        return "unknown field: this is a file for dependency-watchdog 0.x; see docs/reference/configuration.md";
    }
    "unknown field"
}

/// The faults with their places; at most [`MAX_FAULTS`], and one that says that there are more.
fn located(faults: Vec<PathFault>, place: impl Fn(&str) -> Location) -> Vec<ConfigError> {
    let faults = faults.into_iter();
    let mut errors: Vec<_> = faults
        .map(|(path, message)| ConfigError::new(place(&path), path, message))
        .collect();
    if let Some(last) = errors.get_mut(MAX_FAULTS) {
        last.path.clear();
        "more errors follow; they are not shown".clone_into(&mut last.message);
    }
    errors
}

// === paths and places ===

/// A path as errors show it.
fn shown(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => item_of(&shown(parent), *index),
        Path::Map { parent, key } => joined(&shown(parent), key),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            shown(parent)
        }
    }
}

/// The path to a key below another path.
fn joined(path: &str, key: &str) -> String {
    let is_simple = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match (path.is_empty(), !key.is_empty() && key.chars().all(is_simple)) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{:?}]", cut(key)),
    }
}

fn item_of(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

/// The places of the keys and values of a file, by their paths.
#[derive(Default)]
struct Places(HashMap<String, (Location, Location)>);

/// A file of any content.
enum Node {
    Scalar,
    Mapping(Vec<(Spanned<String>, Spanned<Self>)>),
    List(Vec<Spanned<Self>>),
}

impl Places {
    /// Knows none if the file cannot be read that way.
    fn of(text: &str) -> Self {
        let mut places = Self::default();
        if let Ok(root) = serde_saphyr::from_str_with_options::<Spanned<Node>>(text, yaml::options()) {
            places.add(String::new(), root.referenced, root);
        }
        places
    }

    fn add(&mut self, path: String, key: Location, value: Spanned<Node>) {
        match value.value {
            Node::Scalar => {}
            Node::Mapping(fields) => {
                for (name, field) in fields {
                    self.add(joined(&path, &name.value), name.referenced, field);
                }
            }
            Node::List(items) => {
                for (index, item) in items.into_iter().enumerate() {
                    self.add(item_of(&path, index), item.referenced, item);
                }
            }
        }
        self.0.insert(path, (key, value.referenced));
    }

    fn key(&self, path: &str) -> Location {
        self.0.get(path).map_or(Location::UNKNOWN, |(key, _)| *key)
    }

    /// Of a value that is not there, the place of what should hold it.
    fn value(&self, path: &str) -> Location {
        let older = OLDER_NAMES.iter().filter(|(name, _)| *name == path);
        let names = [path].into_iter().chain(older.map(|(_, older)| *older));
        if let Some((_, value)) = names.filter_map(|name| self.0.get(name)).next() {
            return *value;
        }
        let end = path.rfind(['.', '[']).unwrap_or(0);
        match path.get(..end) {
            Some(holder) if !path.is_empty() => self.value(holder),
            _ => Location::UNKNOWN,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Node, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(Node::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            fields.push(entry);
        }
        Ok(Node::Mapping(fields))
    }
}

// === impl Section ===

impl Section<'_> {
    /// The mapping or list in a field of this one.
    pub(crate) fn below(&self, name: &str) -> Self {
        Self {
            faults: self.faults,
            path: joined(&self.path, name),
        }
    }

    /// An item of the list that this one is.
    pub(crate) fn item(&self, index: usize) -> Self {
        Self {
            faults: self.faults,
            path: item_of(&self.path, index),
        }
    }

    /// The path to this mapping.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Something is wrong with this mapping, list or value as a whole.
    pub(crate) fn wrong(&self, message: impl Into<String>) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() <= MAX_FAULTS {
            faults.push((self.path.clone(), message.into()));
        }
    }

    /// Something is wrong with a field.
    pub(crate) fn fault(&self, name: &str, message: impl Into<String>) {
        self.below(name).wrong(message);
    }

    /// A field that must be there.
    pub(crate) fn required<T>(&self, name: &str, field: Option<T>) -> Option<T> {
        if field.is_none() {
            self.fault(name, "is required");
        }
        field
    }

    /// A number within a range; the default where it is absent or out of range.
    pub(crate) fn number<N: PartialOrd + fmt::Display>(
        &self,
        name: &str,
        default: N,
        field: Option<N>,
        range: RangeInclusive<N>,
    ) -> N {
        match field {
            None => default,
            Some(value) if range.contains(&value) => value,
            Some(value) => {
                let (least, most) = range.into_inner();
                self.fault(name, format!("must be from {least} to {most}, not {value}"));
                default
            }
        }
    }

    /// A duration from `min` to a day; the default where it is absent or wrong.
    pub(crate) fn duration(
        &self,
        name: &str,
        default: Duration,
        field: Option<String>,
        min: Duration,
    ) -> Duration {
        let Some(text) = field else { return default };
        let message = match duration::parse(&text) {
            Ok(value) if value < min => out_of_bounds("least", min, &text),
            Ok(value) if value > MAX_DURATION => out_of_bounds("most", MAX_DURATION, &text),
            Ok(value) => return value,
            Err(error) => error.to_string(),
        };
        self.fault(name, message);
        default
    }
}

fn out_of_bounds(bound: &str, limit: Duration, text: &str) -> String {
    let limit = duration::format(limit);
    format!("must be at {bound} {limit}, not {}", cut(text))
}
