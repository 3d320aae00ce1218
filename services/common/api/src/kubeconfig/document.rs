//! YAML or JSON, from which the context in use picks its cluster and its user, in kube's own types. Everything else in
//! a file may be anything.

use super::{Result, refuse};
use crate::yaml;
use encoding_rs::{Encoding, UTF_8};
use kube::config::{AuthInfo, Cluster, Context};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_saphyr::Error as YamlError;
use serde_saphyr::options::DuplicateKeyPolicy;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// A field that is refused unless it is empty or false, and what to do instead.
pub(super) type RefusedField = (&'static str, &'static str);

/// The fields that are refused, none by default.
#[derive(Clone, Copy, Default)]
pub(super) struct RefusedFields {
    pub(super) cluster: &'static [RefusedField],
    pub(super) user: &'static [RefusedField],
}

/// One document that is not empty.
pub(super) struct Document {
    /// Its file; empty where it comes from a Secret.
    file: PathBuf,
    root: Map<String, Value>,
}

/// The cluster and the user of a context.
pub(super) struct Selected {
    pub(super) cluster: FilePart<Cluster>,
    pub(super) user: FilePart<AuthInfo>,
}

/// A part of a document whose empty values were left out.
pub(super) struct FilePart<T> {
    pub(super) value: T,
    /// How errors name it.
    pub(super) path: String,
    /// Relative names of files begin here.
    pub(super) folder: PathBuf,
}

/// An entry of a list, such as `clusters: [{name: ..., cluster: {...}}, ...]`.
struct Entry<'d> {
    document: &'d Document,
    path: String,
    name: Option<&'d str>,
    /// The field beside the name, such as `cluster`.
    field: &'static str,
    value: &'d Value,
}

/// Reads the documents of a file.
pub(super) fn decode(bytes: &[u8], most_bytes: usize, file: &Path) -> Result<Vec<Document>> {
    let whole = || located(file, "kubeconfig");
    if bytes.len() > most_bytes {
        let reason = format!("has {} bytes; the limit is {most_bytes}", bytes.len());
        return refuse(whole(), reason);
    }
    let Some(text) = text(bytes) else {
        return refuse(whole(), "is not UTF-8");
    };
    // Of a field that is there twice the last counts, as for client-go: most of a file is none of our business.
    let mut options = yaml::options();
    options.duplicate_keys = DuplicateKeyPolicy::LastWins;
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options)
        .or_else(|error| refuse(whole(), undecodable(&error)))?;
    let mut kept = Vec::new();
    for document in documents {
        match document {
            Value::Object(mut root) if !root.is_empty() => {
                root.values_mut().for_each(as_go_reads_it);
                let file = file.to_owned();
                kept.push(Document { file, root });
            }
            Value::Object(_) | Value::Null => {}
            _ => return refuse(whole(), "must be a mapping"),
        }
    }
    Ok(kept)
}

/// Picks the context of this name, or else the current one, or else the only one. Of entries with the same name in
/// several documents the first counts, as for kubectl.
pub(super) fn select(
    documents: &[Document],
    context: Option<&str>,
    refused: RefusedFields,
) -> Result<Selected> {
    if documents.is_empty() {
        return refuse("kubeconfig", "is empty");
    }
    let context: FilePart<Context> = current(documents, context)?.section(&[])?;
    let Some(cluster) = find(documents, "clusters", &context.value.cluster)? else {
        return refuse("clusters", "no entry has the name that the context refers to");
    };
    let user = match &context.value.user {
        Some(name) => find(documents, "users", name)?,
        None => None,
    };
    Ok(Selected {
        cluster: cluster.section(refused.cluster)?,
        // Without a user, client-go is anonymous.
        user: match user.filter(|user| !is_empty(user.value)) {
            Some(user) => user.section(refused.user)?,
            None => FilePart {
                value: AuthInfo::default(),
                path: "users".to_owned(),
                folder: PathBuf::new(),
            },
        },
    })
}

/// The names of all contexts, in the order of the files.
pub(super) fn context_names(documents: &[Document]) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for entry in entries(documents, "contexts")? {
        let name = entry.name.map(str::to_owned);
        names.extend(name.filter(|name| !names.contains(name)));
    }
    Ok(names)
}

/// The context in use.
fn current<'d>(documents: &'d [Document], asked: Option<&'d str>) -> Result<Entry<'d>> {
    let (name, referrer) = match asked {
        Some(name) => (Some(name), "--context"),
        None => (current_name(documents)?, "current-context"),
    };
    if let Some(name) = name {
        let unknown = || format!("no entry has the name that {referrer} refers to");
        let found = find(documents, "contexts", name)?;
        return found.map_or_else(|| refuse("contexts", unknown()), Ok);
    }
    let mut all = entries(documents, "contexts")?;
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => refuse("current-context", "is required when there are several contexts"),
        (None, _) => refuse("contexts", "must hold a context"),
    }
}

fn current_name(documents: &[Document]) -> Result<Option<&str>> {
    const FIELD: &str = "current-context";
    for document in documents {
        match document.root.get(FIELD) {
            Some(Value::String(name)) if !name.is_empty() => return Ok(Some(name)),
            Some(value) if !is_empty(value) => return refuse(document.located(FIELD), WRONG_TYPE),
            _ => {}
        }
    }
    Ok(None)
}

/// The entry of a list by its name.
fn find<'d>(documents: &'d [Document], list: &'static str, wanted: &str) -> Result<Option<Entry<'d>>> {
    let entries = entries(documents, list)?.into_iter();
    let mut found = entries.filter(|entry| entry.name == Some(wanted));
    let first = found.next();
    match (&first, found.next()) {
        (Some(first), Some(second)) if std::ptr::eq(first.document, second.document) => refuse(
            join(&second.path, "name"),
            "is the same as that of an entry before",
        ),
        _ => Ok(first),
    }
}

/// The entries of a list in all documents.
fn entries<'d>(documents: &'d [Document], list: &'static str) -> Result<Vec<Entry<'d>>> {
    let field = list.trim_end_matches('s');
    let mut all = Vec::new();
    for document in documents {
        let items = match document.root.get(list) {
            Some(Value::Array(items)) => items.as_slice(),
            Some(value) if !is_empty(value) => return refuse(document.located(list), WRONG_TYPE),
            _ => &[],
        };
        all.extend(items.iter().enumerate().map(|(index, item)| Entry {
            document,
            path: document.located(&format!("{list}[{index}]")),
            name: item.get("name").and_then(Value::as_str),
            field,
            value: item.get(field).unwrap_or(&Value::Null),
        }));
    }
    Ok(all)
}

const WRONG_TYPE: &str = "has a value of the wrong type";

// === impl Document ===

impl Document {
    /// The path to something in it, as errors show it.
    fn located(&self, path: &str) -> String {
        located(&self.file, path)
    }
}

// === impl Entry ===

impl Entry<'_> {
    /// Checks and decodes it. An error names no more than a field that kube knows, because other keys are text of the
    /// file, and nothing of what serde says, because that quotes the file.
    fn section<T: DeserializeOwned>(self, refused: &[RefusedField]) -> Result<FilePart<T>> {
        let path = join(&self.path, self.field);
        let Value::Object(fields) = self.value else {
            return refuse(path, "must be a mapping");
        };
        let mut fields = fields.clone();
        fields.retain(|_, value| !is_empty(value));
        for (field, instead) in refused {
            if fields.get(*field).is_some_and(|value| *value != false) {
                return refuse(join(&path, field), format!("is not supported: {instead}"));
            }
        }
        if let Some(Value::Array(extensions)) = fields.get_mut("extensions") {
            let complete = |entry: &Value| {
                entry.get("extension").is_some() && entry.get("name").is_some_and(Value::is_string)
            };
            extensions.retain(complete);
        }
        match serde_path_to_error::deserialize(Value::Object(fields)) {
            Ok(value) => Ok(FilePart {
                value,
                path,
                folder: self.document.file.parent().unwrap_or(Path::new("")).to_owned(),
            }),
            Err(error) => match error.path().iter().next() {
                Some(serde_path_to_error::Segment::Map { key }) => refuse(join(&path, key), WRONG_TYPE),
                _ => refuse(path, "lacks the field cluster"),
            },
        }
    }
}

/// Go, unlike kube, does not distinguish these from a field that is absent.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A field that is null counts as absent. No field is a number, but YAML takes text of digits for one. What the
/// extensions hold is passed on as it is.
fn as_go_reads_it(value: &mut Value) {
    match value {
        Value::Number(number) => *value = Value::String(number.to_string()),
        Value::Array(items) => items.iter_mut().for_each(as_go_reads_it),
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            let texts = fields.iter_mut().filter(|(key, _)| *key != "extensions");
            texts.for_each(|(_, value)| as_go_reads_it(value));
        }
        _ => {}
    }
}

/// The text of a file, which may begin with a byte order mark.
fn text(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let (encoding, mark) = Encoding::for_bom(bytes).unwrap_or((UTF_8, 0));
    encoding.decode_without_bom_handling_and_without_replacement(bytes.get(mark..)?)
}

/// Why and where a file cannot be decoded. What the decoder says is not shown, because it quotes the file.
fn undecodable(error: &YamlError) -> String {
    let what = match yaml::cause(error) {
        YamlError::Budget { .. } | YamlError::AliasReplayLimitExceeded { .. } => "is too large or too deep",
        _ => "is not valid YAML",
    };
    let at = error.location().unwrap_or(serde_saphyr::Location::UNKNOWN);
    format!("{what} at line {}, column {}", at.line(), at.column())
}

fn located(file: &Path, path: &str) -> String {
    if file.as_os_str().is_empty() {
        return path.to_owned();
    }
    format!("{}: {path}", file.display())
}

pub(super) fn join(path: &str, field: &str) -> String {
    format!("{path}.{field}")
}
