//! Reading configuration files: serde-saphyr decodes one into its types, and `validate` reports all that is wrong with
//! their content at once.

use crate::text::{cut, printable};
use crate::{duration, names, yaml};
use serde::{Deserialize, de::DeserializeOwned};
use serde_path_to_error::{Segment, Track};
use std::{cell::RefCell, fmt, ops::RangeInclusive, time::Duration};

/// Longest duration that a field takes. No setting comes near a day; a longer one is a typing error.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// The least duration that is not zero.
pub(crate) const POSITIVE: Duration = Duration::from_millis(1);

/// Most faults that are reported: a file of another kind must not flood the log.
const MAX_FAULTS: usize = 100;

/// A longer key is quoted and cut: no field has such a name.
const LONGEST_NAME: usize = 100;

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

/// All that is wrong with a file, a line each: a fault of form with its line, column and field, or all faults of
/// content, each with its field, such as `dependentResourceInfos[0].ref.kind`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<String>);

/// The mapping or list of the file that is being checked.
#[derive(Clone)]
pub(crate) struct Section<'f> {
    faults: &'f RefCell<Vec<String>>,
    path: String,
}

/// Reads a file into `F`, and makes the configuration of it.
///
/// # Errors
/// The first fault of form, or all unknown fields and faults of content.
pub(crate) fn read<F: DeserializeOwned, T>(
    bytes: &[u8],
    unknown: UnknownFields,
    validate: impl FnOnce(F, &Section<'_>) -> Option<T>,
) -> Result<Parsed<T>, ConfigErrors> {
    let failed = |fault| ConfigErrors(vec![fault]);
    let text = yaml::text(bytes).map_err(failed)?;
    let mut unknown_fields = Vec::new();
    let mut track = Track::new();
    let file = serde_saphyr::with_deserializer_from_str_with_options(text, yaml::options(), |yaml| {
        let mut note = |path: serde_ignored::Path<'_>| unknown_fields.push(unknown_field(&shown(&path)));
        let yaml = serde_ignored::Deserializer::new(yaml, &mut note);
        Option::<F>::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
    });
    let file = file.map_err(|error| failed(yaml::fault(&error, &tracked(&track.path()))))?;
    let file = file.ok_or_else(|| failed("the file is empty".to_owned()))?;
    let faults = RefCell::default();
    let root = Section {
        faults: &faults,
        path: String::new(),
    };
    let config = validate(file, &root);
    let mut faults = faults.into_inner();
    if unknown == UnknownFields::Refused {
        faults.append(&mut unknown_fields);
    }
    match config {
        Some(config) if faults.is_empty() => Ok(Parsed {
            config,
            ignored: (!unknown_fields.is_empty()).then(|| ConfigErrors::new(unknown_fields)),
        }),
        _ => Err(ConfigErrors::new(faults)),
    }
}

/// The first fields of the files of dependency-watchdog 0.x.
const OF_VERSION_0: [&str; 2] = ["probes", "services"];

fn unknown_field(path: &str) -> String {
    let hint = match OF_VERSION_0.contains(&path) {
        true => ": this is a file for dependency-watchdog 0.x; see docs/reference/configuration.md",
        false => "",
    };
    format!("{path}: unknown field{hint}")
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

// === paths ===

/// The path to the value that could not be read.
fn tracked(path: &serde_path_to_error::Path) -> String {
    path.iter().fold(String::new(), |path, segment| match segment {
        Segment::Seq { index } => item_of(&path, *index),
        Segment::Map { key } => joined(&path, key),
        Segment::Enum { .. } | Segment::Unknown => path,
    })
}

/// The path to an unknown field.
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
    let is_name = (1..=LONGEST_NAME).contains(&key.len()) && key.chars().all(is_simple);
    match (path.is_empty(), is_name) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{:?}]", cut(key)),
    }
}

/// The path to an item of a list.
fn item_of(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

// === impl ConfigErrors ===

impl ConfigErrors {
    fn new(faults: Vec<String>) -> Self {
        let shown = faults.iter().take(MAX_FAULTS);
        let mut shown: Vec<_> = shown.map(|fault| printable(fault)).collect();
        if faults.len() > MAX_FAULTS {
            shown.push("more errors follow; they are not shown".to_owned());
        }
        Self(shown)
    }

    /// The same errors, each with the name of the file.
    #[must_use]
    pub fn with_file(self, file: &str) -> Self {
        Self(self.0.iter().map(|fault| format!("{file}: {fault}")).collect())
    }

    /// The errors, a line each.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

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
    pub(crate) fn wrong(&self, message: impl fmt::Display) {
        self.faults.borrow_mut().push(format!("{}: {message}", self.path));
    }

    /// Something is wrong with a field.
    pub(crate) fn fault(&self, name: &str, message: impl fmt::Display) {
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
    pub(crate) fn object_name(&self, name: &str, value: String) -> String {
        if value.is_empty() {
            self.fault(name, "must not be empty");
        } else if !names::is_dns_subdomain(&value) {
            let rule =
                "must be the name of an object: lower-case letters, digits, - and ., at most 253 characters";
            self.fault(name, rule);
        }
        value
    }

    /// A number, by default this one.
    pub(crate) fn number<N: PartialOrd + fmt::Display>(
        &self,
        name: &str,
        field: Option<N>,
        default: N,
        range: RangeInclusive<N>,
    ) -> N {
        let value = field.unwrap_or(default);
        if !range.contains(&value) {
            let (least, most) = range.into_inner();
            self.fault(name, format_args!("must be from {least} to {most}, not {value}"));
        }
        value
    }

    /// A duration, by default this one, of at least `least`.
    pub(crate) fn duration(
        &self,
        name: &str,
        field: Option<String>,
        default: Duration,
        least: Duration,
    ) -> Duration {
        let Some(text) = field else {
            return default;
        };
        match duration::parse(&text) {
            Ok(value) if (least..=MAX_DURATION).contains(&value) => return value,
            Ok(value) => {
                let [least, most, value] = [least, MAX_DURATION, value].map(duration::format);
                self.fault(name, format_args!("must be from {least} to {most}, not {value}"));
            }
            Err(error) => self.fault(name, error),
        }
        default
    }
}
