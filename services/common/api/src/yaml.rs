//! The limits within which serde-saphyr reads every file, and what its errors mean.

use crate::text::{begin, printable};
use serde_saphyr::{
    Error, Location, MessageFormatter as _, NonFiniteFloatPolicy, Options, UserMessageFormatter,
};

/// Largest file that is read: the size limit of a ConfigMap or Secret.
const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting; a configuration file has 7 levels, a kubeconfig 5.
const MAX_DEPTH: usize = 32;
/// Most values in a file, and most that its aliases may add.
const MAX_NODES: usize = 100_000;

/// The text of a file.
///
/// # Errors
/// Too large or not UTF-8; quotes nothing of the file.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() > MAX_BYTES {
        return Err(format!(
            "the file has {} bytes; the limit is {MAX_BYTES}",
            bytes.len()
        ));
    }
    std::str::from_utf8(bytes)
        .map_err(|error| format!("the file is not UTF-8 after {} bytes", error.valid_up_to()))
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

/// Where it is. Of a file that may hold a secret nothing else is shown.
pub(crate) fn place(error: &Error) -> String {
    let at = error.location().unwrap_or(Location::UNKNOWN);
    format!("line {}, column {}", at.line().max(1), at.column().max(1))
}

/// An error of a configuration file, in which nothing is secret: of the field at a path, or of the file as a whole.
pub(crate) fn fault(error: &Error, path: &str) -> String {
    let message = match wanted(cause(error)) {
        Some(wanted) => wanted.to_owned(),
        None => begin(&UserMessageFormatter.format_message(cause(error)), 200),
    };
    let place = place(error);
    match path {
        "" => printable(&format!("{place}: {message}")),
        path => printable(&format!("{place}: {path}: {message}")),
    }
}

/// The form that a value should have.
fn wanted(error: &Error) -> Option<&'static str> {
    let wanted = match error {
        Error::Unexpected { expected, .. } => *expected,
        Error::InvalidScalar { ty, .. } => *ty,
        _ => return None,
    };
    Some(match wanted {
        "mapping start" => "must be a mapping of fields",
        "sequence start" => "must be a list",
        "boolean" => "must be true or false",
        "floating point" => "must be a number",
        integer if integer.starts_with('u') => "must be a whole number, 0 or more",
        integer if integer.starts_with('i') => "must be a whole number",
        _ => "must be a single value, not a list or a mapping",
    })
}

#[cfg(test)]
mod tests;
