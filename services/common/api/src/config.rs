//! Reading configuration files: serde-saphyr decodes one into its types, and one check reports all that is wrong with
//! their content. Where something is wrong, the file is read once more to find the places.

pub use crate::config_error::{ConfigError, ConfigErrors};

use crate::config_error::{item_of, joined};
use crate::{duration, names, text::cut, yaml};
use serde::{Deserialize, de::DeserializeOwned};
use serde_path_to_error::{Segment, Track};
use serde_saphyr::Error;
use serde_saphyr::granit_parser::{Event, Parser, Span};
use std::{
    cell::{LazyCell, RefCell},
    collections::{BTreeSet, HashMap},
    fmt,
    time::Duration,
};

/// Longest duration that a field takes. No setting comes near a day; a longer one is a typing error.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// The least duration that is not zero.
pub(crate) const POSITIVE: Duration = Duration::from_millis(1);

/// A number or a duration of a file.
pub(crate) struct Setting<T> {
    name: &'static str,
    default: T,
    least: T,
    most: T,
}

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
    let mut track = Track::new();
    let file = serde_saphyr::with_deserializer_from_str_with_options(text, yaml::options(), |yaml| {
        let mut note = |path: serde_ignored::Path<'_>| {
            let path = shown(&path);
            let message = unknown_field(&path).to_owned();
            unknown_fields.push((path, message));
        };
        let yaml = serde_ignored::Deserializer::new(yaml, &mut note);
        Option::<F>::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
    });
    let file = file.map_err(|error| {
        let given_twice = match yaml::cause(&error) {
            // The type that is read refuses nothing else by itself.
            Error::Message { .. } => given_twice(text),
            _ => None,
        };
        let of_form = || yaml::fault(&error, &tracked(&track.path()));
        failed(given_twice.unwrap_or_else(of_form))
    })?;
    let file = file.ok_or_else(|| failed(ConfigError::new((1, 1), "", "the file is empty")))?;
    let faults = RefCell::default();
    let root = Section {
        faults: &faults,
        path: String::new(),
    };
    let config = check(file, &root);
    let mut faults = faults.into_inner();
    // One more than is shown says that there are more.
    faults.truncate(MAX_FAULTS + 1);
    unknown_fields.truncate(MAX_FAULTS + 1);
    let paths = faults.iter().chain(&unknown_fields).map(|(path, _)| path);
    let names = paths.flat_map(|path| names_of(path));
    let places = LazyCell::new(move || Places::of(text, names));
    let mut errors = located(&faults, |path| places.value(path));
    let mut ignored = located(&unknown_fields, |path| places.key(path));
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
fn located(faults: &[PathFault], place: impl Fn(&str) -> Place) -> Vec<ConfigError> {
    let faults = faults.iter();
    let mut errors: Vec<_> = faults
        .map(|(path, message)| ConfigError::new(place(path), path.clone(), message.clone()))
        .collect();
    if let Some(last) = errors.get_mut(MAX_FAULTS) {
        last.path.clear();
        "more errors follow; they are not shown".clone_into(&mut last.message);
    }
    errors
}

// === paths and places ===

/// The path to the value that could not be read.
fn tracked(path: &serde_path_to_error::Path) -> String {
    path.iter().fold(String::new(), |path, segment| match segment {
        Segment::Seq { index } => item_of(&path, *index),
        Segment::Map { key } => joined(&path, key),
        Segment::Enum { .. } | Segment::Unknown => path,
    })
}

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

/// Line and column.
type Place = (u64, u64);

/// The places of the keys and values with faults, and of all that holds them, by their paths.
#[derive(Default)]
struct Places<'p> {
    wanted: BTreeSet<&'p str>,
    found: HashMap<String, (Place, Place)>,
}

impl<'p> Places<'p> {
    /// Of the keys and values at these paths.
    fn of(text: &str, wanted: impl Iterator<Item = &'p str>) -> Self {
        let mut places = Self {
            wanted: wanted.collect(),
            ..Self::default()
        };
        let events = Parser::new_from_str(text).map_while(Result::ok);
        let is_end = |event: &Event<'_>| matches!(event, Event::MappingEnd | Event::SequenceEnd);
        let mut nodes = events.filter(|(event, _)| event.is_node() || is_end(event));
        if let Some(root) = nodes.next() {
            places.add(String::new(), place(&root.1), root, &mut nodes);
        }
        places
    }

    /// Adds a node and what is wanted of all that is in it, which comes next. What an alias stands for is at the alias.
    fn add<'t>(
        &mut self,
        path: String,
        key: Place,
        (event, span): (Event<'t>, Span),
        nodes: &mut impl Iterator<Item = (Event<'t>, Span)>,
    ) {
        let is_in_it = |wanted: &&str| wanted.len() > path.len() && wanted.starts_with(&path);
        let holds_wanted = self.wanted.iter().any(is_in_it);
        match event {
            _ if !holds_wanted => skip(&event, nodes),
            Event::MappingStart(..) => {
                while let Some((name, span)) = nodes.next().filter(|(event, _)| *event != Event::MappingEnd) {
                    if !matches!(name, Event::Scalar(..)) {
                        skip(&name, nodes);
                    }
                    let Some(value) = nodes.next() else { break };
                    match name {
                        Event::Scalar(name, ..) => self.add(joined(&path, &name), place(&span), value, nodes),
                        // No field has such a name.
                        _ => skip(&value.0, nodes),
                    }
                }
            }
            Event::SequenceStart(..) => {
                let mut index = 0;
                while let Some(item) = nodes.next().filter(|(event, _)| *event != Event::SequenceEnd) {
                    self.add(item_of(&path, index), place(&item.1), item, nodes);
                    index += 1;
                }
            }
            _ => {}
        }
        if holds_wanted || self.wanted.contains(path.as_str()) {
            self.found.insert(path, (key, place(&span)));
        }
    }

    fn key(&self, path: &str) -> Place {
        self.found
            .get(path)
            .map_or_else(|| self.value(path), |(key, _)| *key)
    }

    /// Of a value that is not there, the place of what should hold it.
    fn value(&self, path: &str) -> Place {
        if let Some((_, value)) = names_of(path).filter_map(|name| self.found.get(name)).next() {
            return *value;
        }
        let end = path.rfind(['.', '[']).unwrap_or(0);
        match path.get(..end) {
            Some(holder) if !path.is_empty() => self.value(holder),
            _ => (1, 1),
        }
    }
}

/// The names that the field at a path may have in a file.
fn names_of(path: &str) -> impl Iterator<Item = &str> {
    let older = OLDER_NAMES.iter().filter(move |(name, _)| *name == path);
    [path].into_iter().chain(older.map(|(_, older)| *older))
}

/// The field that a file has by two of its names.
fn given_twice(text: &str) -> Option<ConfigError> {
    let fields = OLDER_NAMES.map(|(name, _)| name);
    let places = Places::of(text, fields.into_iter().flat_map(names_of));
    fields.into_iter().find_map(|name| {
        let place = |name| Some((places.found.get(name)?.0, name));
        let mut given: Vec<_> = names_of(name).filter_map(place).collect();
        given.sort_unstable();
        let (_, first) = given.first()?;
        let (again, second) = given.get(1)?;
        Some(ConfigError::new(
            *again,
            *second,
            format!("is given already, as {first}"),
        ))
    })
}

/// Passes over all that is in a node.
fn skip<'t>(event: &Event<'t>, nodes: &mut impl Iterator<Item = (Event<'t>, Span)>) {
    let is_start = |event: &Event<'_>| matches!(event, Event::MappingStart(..) | Event::SequenceStart(..));
    let is_end = |event: &Event<'_>| matches!(event, Event::MappingEnd | Event::SequenceEnd);
    let mut open = usize::from(is_start(event));
    while open > 0 {
        let Some((event, _)) = nodes.next() else { return };
        open = open + usize::from(is_start(&event)) - usize::from(is_end(&event));
    }
}

fn place(span: &Span) -> Place {
    (span.start.line() as u64, span.start.col() as u64 + 1)
}

// === impl Setting ===

impl<N> Setting<N> {
    pub(crate) const fn number(name: &'static str, default: N, least: N, most: N) -> Self {
        Self {
            name,
            default,
            least,
            most,
        }
    }
}

impl Setting<Duration> {
    pub(crate) const fn duration(name: &'static str, default: Duration, least: Duration) -> Self {
        Self::number(name, default, least, MAX_DURATION)
    }
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
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
        let fault = (self.path.clone(), message.into());
        self.faults.borrow_mut().push(fault);
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

    /// The name of a Kubernetes object: a DNS subdomain.
    pub(crate) fn object_name(&self, name: &str, value: String) -> Option<String> {
        if names::is_dns_subdomain(&value) {
            return Some(value);
        }
        let rule = match &*value {
            "" => "must not be empty",
            _ => "must be the name of an object: lower-case letters, digits, - and ., at most 253 characters",
        };
        self.fault(name, rule);
        None
    }

    /// A number; the default where it is absent or out of range.
    pub(crate) fn number<N: PartialOrd + fmt::Display>(&self, setting: Setting<N>, field: Option<N>) -> N {
        let Setting {
            name,
            default,
            least,
            most,
        } = setting;
        match field {
            None => default,
            Some(value) if (&least..=&most).contains(&&value) => value,
            Some(value) => {
                self.fault(name, format!("must be from {least} to {most}, not {value}"));
                default
            }
        }
    }

    /// A duration; the default where it is absent or wrong.
    pub(crate) fn duration(&self, setting: Setting<Duration>, field: Option<String>) -> Duration {
        let Some(text) = field else {
            return setting.default;
        };
        let message = match duration::parse(&text) {
            Ok(value) if value < setting.least => out_of_bounds("least", setting.least, &text),
            Ok(value) if value > setting.most => out_of_bounds("most", setting.most, &text),
            Ok(value) => return value,
            Err(error) => error,
        };
        self.fault(setting.name, message);
        setting.default
    }
}

fn out_of_bounds(bound: &str, limit: Duration, text: &str) -> String {
    let limit = duration::format(limit);
    format!("must be at {bound} {limit}, not {}", cut(text))
}
