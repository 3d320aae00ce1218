//! Reading configuration files: serde-saphyr decodes one into its types, and one check reports all that is wrong with
//! their content, each fault with its place.

mod node;

pub use crate::config_error::{ConfigError, ConfigErrors};

use self::node::{Node, Place};
use crate::config_error::{item_of, joined};
use crate::{duration, names, text::cut, yaml};
use serde::{Deserialize, de::DeserializeOwned};
use serde_path_to_error::{Segment, Track};
use serde_saphyr::Error;
use std::cell::RefCell;
use std::fmt;
use std::ops::{RangeFrom, RangeInclusive};
use std::time::Duration;

/// Longest duration that a field takes. No setting comes near a day; a longer one is a typing error.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// The least duration that is not zero.
pub(crate) const POSITIVE: Duration = Duration::from_millis(1);

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

/// A value of the file that is being checked, such as a mapping, a list, or a field of them.
#[derive(Clone)]
pub(crate) struct Section<'f> {
    faults: &'f RefCell<Vec<ConfigError>>,
    path: String,
    /// Of a value that is not there, this is what should hold it.
    node: &'f Node<'f>,
    key: Place,
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
    let node = Node::root(text);
    let (faults, unknown_fields) = (RefCell::default(), RefCell::default());
    let root = Section {
        faults: &faults,
        path: String::new(),
        node: &node,
        key: node.key,
    };
    let mut track = Track::new();
    let file = serde_saphyr::with_deserializer_from_str_with_options(text, yaml::options(), |yaml| {
        let root = Section {
            faults: &unknown_fields,
            ..root.clone()
        };
        let mut note = |path: serde_ignored::Path<'_>| root.ignored(&path).unknown();
        let yaml = serde_ignored::Deserializer::new(yaml, &mut note);
        Option::<F>::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
    });
    let file = file.map_err(|error| {
        let given_twice = match yaml::cause(&error) {
            // The type that is read refuses nothing else by itself.
            Error::Message { .. } => given_twice(&node),
            _ => None,
        };
        let of_form = || yaml::fault(&error, &root.tracked(&track.path()).path);
        failed(given_twice.unwrap_or_else(of_form))
    })?;
    let file = file.ok_or_else(|| failed(ConfigError::new((1, 1), "", "the file is empty")))?;
    let config = check(file, &root);
    let (mut errors, mut ignored) = (faults.into_inner(), unknown_fields.into_inner());
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

/// The names that a field may have in a file.
fn names_of(name: &str) -> impl Iterator<Item = &str> {
    let older = OLDER_NAMES.iter().filter(move |(newer, _)| *newer == name);
    [name].into_iter().chain(older.map(|(_, older)| *older))
}

/// The field that a file has by two of its names.
fn given_twice(root: &Node<'_>) -> Option<ConfigError> {
    OLDER_NAMES.iter().find_map(|(name, _)| {
        let given = names_of(name).filter_map(|name| Some((root.fields.get(name)?.key, name)));
        let mut given: Vec<_> = given.collect();
        given.sort_unstable();
        let [(_, first), (again, second), ..] = given.as_slice() else {
            return None;
        };
        Some(ConfigError::new(
            *again,
            *second,
            format!("is given already, as {first}"),
        ))
    })
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

// === impl Section ===

impl<'f> Section<'f> {
    /// A field of this mapping.
    pub(crate) fn below(&self, name: &str) -> Self {
        let field = names_of(name).find_map(|name| self.node.fields.get(name));
        self.holding(joined(&self.path, name), field)
    }

    /// An item of this list.
    pub(crate) fn item(&self, index: usize) -> Self {
        self.holding(item_of(&self.path, index), self.node.items.get(index))
    }

    fn holding(&self, path: String, node: Option<&'f Node<'f>>) -> Self {
        Self {
            faults: self.faults,
            path,
            node: node.unwrap_or(self.node),
            key: node.map_or(self.node.place, |node| node.key),
        }
    }

    /// The value below this one that was not read.
    fn ignored(&self, path: &serde_ignored::Path<'_>) -> Self {
        use serde_ignored::Path;
        match path {
            Path::Root => self.clone(),
            Path::Seq { parent, index } => self.ignored(parent).item(*index),
            Path::Map { parent, key } => self.ignored(parent).below(key),
            Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
                self.ignored(parent)
            }
        }
    }

    /// The value below this one that could not be read.
    fn tracked(&self, path: &serde_path_to_error::Path) -> Self {
        path.iter().fold(self.clone(), |at, segment| match segment {
            Segment::Seq { index } => at.item(*index),
            Segment::Map { key } => at.below(key),
            Segment::Enum { .. } | Segment::Unknown => at,
        })
    }

    /// Nobody knows this field.
    fn unknown(&self) {
        let message = match &*self.path {
            "probes" | "services" => {
                "unknown field: this is a file for dependency-watchdog 0.x; see docs/reference/configuration.md"
            }
            _ => "unknown field",
        };
        self.add(self.key, message.to_owned());
    }

    fn add(&self, place: Place, message: String) {
        let mut faults = self.faults.borrow_mut();
        let (path, message) = match faults.len() {
            ..MAX_FAULTS => (&*self.path, message),
            MAX_FAULTS => ("", "more errors follow; they are not shown".to_owned()),
            _ => return,
        };
        faults.push(ConfigError::new(place, path, message));
    }

    /// The path to this value.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Something is wrong with this mapping, list or value as a whole.
    pub(crate) fn wrong(&self, message: impl Into<String>) {
        self.add(self.node.place, message.into());
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

    /// A text that must be there and as the rule has it.
    pub(crate) fn text(
        &self,
        name: &str,
        field: Option<String>,
        rule: fn(&str) -> bool,
        wanted: &str,
    ) -> Option<String> {
        let text = self.required(name, field)?;
        if rule(&text) {
            return Some(text);
        }
        self.fault(name, format!("must be {wanted}, not {:?}", cut(&text)));
        None
    }

    /// The name of a Kubernetes object, which must be there: a DNS subdomain.
    pub(crate) fn object_name(&self, name: &str, field: Option<String>) -> Option<String> {
        let value = self.required(name, field)?;
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

    /// A number in its range.
    pub(crate) fn number<N: PartialOrd + fmt::Display>(
        &self,
        name: &str,
        value: N,
        range: RangeInclusive<N>,
    ) -> N {
        if !range.contains(&value) {
            let (least, most) = (range.start(), range.end());
            self.fault(name, format!("must be from {least} to {most}, not {value}"));
        }
        value
    }

    /// A duration of at least the start of the range; the default where it is absent or wrong.
    pub(crate) fn duration(
        &self,
        name: &str,
        field: Option<String>,
        default: Duration,
        range: RangeFrom<Duration>,
    ) -> Duration {
        let Some(text) = field else {
            return default;
        };
        let message = match duration::parse(&text) {
            Ok(value) if value < range.start => out_of_bounds("least", range.start, &text),
            Ok(value) if value > MAX_DURATION => out_of_bounds("most", MAX_DURATION, &text),
            Ok(value) => return value,
            Err(error) => error,
        };
        self.fault(name, message);
        default
    }
}

fn out_of_bounds(bound: &str, limit: Duration, text: &str) -> String {
    let limit = duration::format(limit);
    format!("must be at {bound} {limit}, not {}", cut(text))
}
