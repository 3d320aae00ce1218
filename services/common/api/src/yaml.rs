//! The limits within which serde-saphyr reads every file, and what its errors mean.

use crate::config_error::{ConfigError, joined};
use crate::text::{begin, cut};
use serde_saphyr::{Error, Location, NonFiniteFloatPolicy, Options, budget::BudgetBreach};

/// Largest file that is read: the size limit of a ConfigMap or Secret.
const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting; a configuration file has 7 levels, a kubeconfig 5.
pub(crate) const MAX_DEPTH: usize = 32;
/// Most values in a file, and most that its aliases may add.
pub(crate) const MAX_NODES: usize = 100_000;

/// The text of a file, without a byte order mark.
///
/// # Errors
/// Too large or not UTF-8; quotes nothing of the file.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, ConfigError> {
    if bytes.len() > MAX_BYTES {
        let message = format!("the file has {} bytes; the limit is {MAX_BYTES}", bytes.len());
        return Err(ConfigError::new((1, 1), "", message));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ConfigError::new((line as u64, column as u64), "", "the file is not UTF-8")
    })
}

/// How every file is read.
pub(crate) fn options() -> Options {
    serde_saphyr::options! {
        // Many aliases of one anchor are no attack while what they expand to is bounded: generators of YAML write them.
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH, max_nodes: MAX_NODES, max_aliases: MAX_NODES, enforce_alias_anchor_ratio: false
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_NODES },
        emit_comments: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// The error below the aliases in which it was found.
pub(crate) fn cause(error: &Error) -> &Error {
    match error {
        Error::AliasError { error, .. } => cause(error),
        other => other,
    }
}

/// An error of a configuration file, in which nothing is secret: of the field at a path, or of the file as a whole.
pub(crate) fn fault(error: &Error, path: &str) -> ConfigError {
    let at = error.location().unwrap_or(Location::UNKNOWN);
    let place = (at.line(), at.column());
    if let Error::DuplicateMappingKey { key, .. } = cause(error) {
        let path = key
            .as_ref()
            .map_or_else(|| path.to_owned(), |key| joined(path, key));
        return ConfigError::new(place, path, "is given twice");
    }
    match fault_of_value(cause(error)) {
        Some(MAPPING) if path.is_empty() => ConfigError::new(place, path, format!("the file {MAPPING}")),
        // Of the whole, nothing else is read than its keys.
        Some(_) if path.is_empty() => ConfigError::new(place, path, "the name of a field must be text"),
        Some(message) => ConfigError::new(place, path, message),
        None => ConfigError::new(place, "", begin(&fault_of_file(cause(error)), 200)),
    }
}

const MAPPING: &str = "must be a mapping of fields";

/// The form that a value should have.
fn fault_of_value(error: &Error) -> Option<&'static str> {
    let wanted = match error {
        Error::Unexpected { expected, .. } => *expected,
        Error::InvalidScalar { ty, .. } => *ty,
        Error::NullIntoString { .. }
        | Error::BinaryNotUtf8 { .. }
        | Error::InvalidBinaryBase64 { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. } => return Some("must be text"),
        _ => return None,
    };
    Some(match wanted {
        "mapping start" => MAPPING,
        "sequence start" => "must be a list",
        "boolean" => "must be true or false",
        "floating point" => "must be a number",
        integer if integer.starts_with('u') => "must be a whole number, 0 or more",
        integer if integer.starts_with('i') => "must be a whole number",
        _ => "must be a single value, not a list or a mapping",
    })
}

/// The fault of a file that is not read to its end.
fn fault_of_file(error: &Error) -> String {
    match error {
        Error::ExternalMessage { msg, .. } => format!("the file is not valid YAML: {msg}"),
        Error::Eof { .. } => "the file ends within a value".to_owned(),
        Error::MultipleDocuments { .. } => "the file holds more than one YAML document".to_owned(),
        Error::MergeValueNotMapOrSeqOfMaps { .. } => "<< can merge mappings only".to_owned(),
        Error::UnsupportedTag { tag, .. } => {
            format!("the tag {:?} is not known", cut(tag.trim_start_matches('!')))
        }
        Error::UnknownAnchor { .. } => "the alias refers to a value that is not there".to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "the alias refers to a value that contains it".to_owned()
        }
        Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            format!("the file is nested deeper than {MAX_DEPTH} levels")
        }
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => {
            format!("the file holds more than {MAX_NODES} values, aliases expanded")
        }
        other => {
            let message = other.to_string();
            // The place is shown before it.
            message.split(" at line ").next().unwrap_or_default().to_owned()
        }
    }
}

#[cfg(test)]
mod tests;
