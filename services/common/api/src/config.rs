//! Reading configuration files: serde-saphyr decodes one into its types, and one check reports all that is wrong with
//! their content, each with its place.

pub use crate::config_error::{ConfigError, ConfigErrors};

use crate::{
    duration,
    yaml::{self, cut},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};
use std::{cell::RefCell, fmt, ops::RangeInclusive, time::Duration};

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

/// The faults that a check has found so far.
#[derive(Default)]
pub(crate) struct FoundErrors(RefCell<Vec<ConfigError>>);

/// A mapping of the file that is being checked: where it begins, and the path to it.
#[derive(Clone)]
pub(crate) struct Section<'f> {
    faults: &'f FoundErrors,
    at: Location,
    path: String,
}

/// Reads a file into `F`, which keeps the places of what it holds, and checks that.
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
    let mut paths = Vec::new();
    let file = serde_saphyr::with_deserializer_from_str_with_options(text, yaml::options(), |yaml| {
        let note = |path: serde_ignored::Path<'_>| {
            let path = steps(&path);
            let is_marker = |step: &PathStep| matches!(step, PathStep::Key(key) if key == SPANNED_MARKER);
            if paths.len() <= MAX_FAULTS && !path.last().is_some_and(is_marker) {
                paths.push(path);
            }
        };
        Option::<Spanned<F>>::deserialize(serde_ignored::Deserializer::new(yaml, &mut { note }))
    });
    let file = file.map_err(|error| failed(yaml::fault(&error)))?;
    let file = file.ok_or_else(|| failed(ConfigError::new(Location::UNKNOWN, "", "the file is empty")))?;
    let (unknown_fields, faults) = (FoundErrors::default(), FoundErrors::default());
    for (path, place) in paths.iter().zip(places(text, &paths)) {
        unknown_fields.add(place, shown(path), unknown_field(path));
    }
    let root = Section {
        faults: &faults,
        at: file.referenced,
        path: String::new(),
    };
    let config = check(file.value, &root);
    let (mut errors, unknown_fields) = (faults.0.into_inner(), unknown_fields.0.into_inner());
    if unknown == UnknownFields::Refused {
        errors.extend(unknown_fields.iter().cloned());
    }
    match config {
        Some(config) if errors.is_empty() => {
            let ignored = (!unknown_fields.is_empty()).then(|| ConfigErrors::new(unknown_fields));
            Ok(Parsed { config, ignored })
        }
        _ => Err(ConfigErrors::new(errors)),
    }
}

/// The first fields of the files of dependency-watchdog 0.x.
const OF_VERSION_0: [&str; 2] = ["probes", "services"];

fn unknown_field(path: &[PathStep]) -> &'static str {
    match path {
        [PathStep::Key(key)] if OF_VERSION_0.contains(&key.as_str()) => {
            "unknown field: this is a file for dependency-watchdog 0.x; see docs/reference/configuration.md"
        }
        _ => "unknown field",
    }
}

// === the place of an unknown field ===

/// One step on the way to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    Key(String),
    Index(usize),
}

/// The way to an unknown field. [`Spanned`] and `Option` add steps of their own, which the file does not have.
fn steps(path: &serde_ignored::Path<'_>) -> Vec<PathStep> {
    use serde_ignored::Path;
    let (parent, step) = match path {
        Path::Root => return Vec::new(),
        Path::Seq { parent, index } => (parent, Some(PathStep::Index(*index))),
        Path::Map { parent, key } if key == SPANNED_VALUE => (parent, None),
        Path::Map { parent, key } => (parent, Some(PathStep::Key(key.clone()))),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            (parent, None)
        }
    };
    let mut steps = steps(parent);
    steps.extend(step);
    steps
}

/// The field of [`Spanned`] that holds the value. No field of ours has this name.
const SPANNED_VALUE: &str = "value";

/// The name by which [`Spanned`] asks the decoder for a value and its place: a field that no file has.
const SPANNED_MARKER: &str = "__serde_saphyr_private_spanned";

fn shown(path: &[PathStep]) -> String {
    path.iter().fold(String::new(), |path, step| match step {
        PathStep::Key(key) => joined(&path, key),
        PathStep::Index(index) => format!("{path}[{index}]"),
    })
}

/// The place of the key that ends each path.
fn places(text: &str, paths: &[Vec<PathStep>]) -> Vec<Location> {
    let mut places = vec![Location::UNKNOWN; paths.len()];
    let wanted = paths.iter().map(Vec::as_slice).enumerate().collect();
    let places_of = FindPlaces {
        wanted,
        places: &mut places,
    };
    // The file was read once already: an error cannot occur, and would leave places unknown.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, yaml::options(), |yaml| {
        places_of.deserialize(yaml)
    });
    places
}

/// Notes the places of keys: the number of each path, and what is left of it from here.
struct FindPlaces<'p> {
    wanted: Vec<(usize, &'p [PathStep])>,
    places: &'p mut [Location],
}

impl FindPlaces<'_> {
    /// The paths that begin with this step, without it.
    fn below(&mut self, step: &PathStep) -> FindPlaces<'_> {
        let wanted = self.wanted.iter().filter_map(|(number, path)| {
            let (first, rest) = path.split_first()?;
            (first == step).then_some((*number, rest))
        });
        FindPlaces {
            wanted: wanted.collect(),
            places: &mut *self.places,
        }
    }
}

impl<'de> DeserializeSeed<'de> for FindPlaces<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.wanted.iter().any(|(_, rest)| !rest.is_empty()) {
            true => deserializer.deserialize_any(self),
            false => IgnoredAny::deserialize(deserializer).map(drop),
        }
    }
}

impl<'de> Visitor<'de> for FindPlaces<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping or a list")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let below = self.below(&PathStep::Key(key.value));
            for (number, _) in below.wanted.iter().filter(|(_, rest)| rest.is_empty()) {
                if let Some(place) = below.places.get_mut(*number) {
                    *place = key.referenced;
                }
            }
            entries.next_value_seed(below)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0;
        while items
            .next_element_seed(self.below(&PathStep::Index(index)))?
            .is_some()
        {
            index += 1;
        }
        Ok(())
    }
}

// === impl FoundErrors ===

impl FoundErrors {
    fn add(&self, at: Location, path: String, message: impl Into<String>) {
        let mut faults = self.0.borrow_mut();
        match faults.len() {
            len if len < MAX_FAULTS => faults.push(ConfigError::new(at, path, message)),
            MAX_FAULTS => {
                let more = "more errors follow; they are not shown";
                faults.push(ConfigError::new(at, "", more));
            }
            _ => {}
        }
    }
}

// === impl Section ===

impl Section<'_> {
    /// A mapping below this one.
    pub(crate) fn below(&self, name: &str, at: Location) -> Self {
        Self {
            faults: self.faults,
            at,
            path: joined(&self.path, name),
        }
    }

    /// An item of the list that this one is.
    pub(crate) fn item(&self, index: usize, at: Location) -> Self {
        Self {
            faults: self.faults,
            at,
            path: format!("{}[{index}]", self.path),
        }
    }

    /// The path to this mapping.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Something is wrong with the mapping or list as a whole.
    pub(crate) fn wrong(&self, message: impl Into<String>) {
        self.faults.add(self.at, self.path.clone(), message);
    }

    /// Something is wrong with a field.
    pub(crate) fn fault(&self, name: &str, at: Location, message: impl Into<String>) {
        self.faults.add(at, joined(&self.path, name), message);
    }

    /// A field that must be there.
    pub(crate) fn required<T>(&self, name: &str, field: Option<T>) -> Option<T> {
        if field.is_none() {
            self.fault(name, self.at, "is required");
        }
        field
    }

    /// A number within a range; the default where it is absent or out of range.
    pub(crate) fn number<N: PartialOrd + fmt::Display>(
        &self,
        name: &str,
        default: N,
        field: Option<Spanned<N>>,
        range: RangeInclusive<N>,
    ) -> N {
        match field {
            None => default,
            Some(field) if range.contains(&field.value) => field.value,
            Some(field) => {
                let (least, most) = range.into_inner();
                let message = format!("must be from {least} to {most}, not {}", field.value);
                self.fault(name, field.referenced, message);
                default
            }
        }
    }

    /// A duration from `min` to a day; the default where it is absent or wrong.
    pub(crate) fn duration(
        &self,
        name: &str,
        default: Duration,
        field: Option<Spanned<String>>,
        min: Duration,
    ) -> Duration {
        let Some(field) = field else { return default };
        let message = match duration::parse(&field.value) {
            Ok(value) if (min..=MAX_DURATION).contains(&value) => return value,
            Ok(value) => {
                let (bound, limit) = if value < min {
                    ("least", min)
                } else {
                    ("most", MAX_DURATION)
                };
                format!(
                    "must be at {bound} {}, not {}",
                    duration::format(limit),
                    cut(&field.value)
                )
            }
            Err(error) => error.to_string(),
        };
        self.fault(name, field.referenced, message);
        default
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
