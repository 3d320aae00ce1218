//! Objects that may be malformed without stopping the list or watch that they came in.

use crate::text::{self, Text};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use std::fmt;

/// A value, or why it cannot be read. Its `Deserialize` fails only where the document itself is broken, never for a
/// value of the wrong type, so one bad object is reported and never hides the others.
///
/// The reason names the field and what is wrong with it, never a string found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lenient<T> {
    /// The value.
    Ok(T),
    /// The value is there, but not as it should be, or it is absent and must not be; a sentence for people.
    Malformed(String),
}

/// The fields of a type that are read. Everything else of the document is skipped without being stored, and so is null,
/// which is how Go writes a field that is not set. [`keep!`](crate::keep) lists them.
#[derive(Debug)]
pub enum Keep {
    /// The value and all that is in it.
    All,
    /// Of a mapping, these fields; of a list, these fields of each entry.
    Fields(&'static [(&'static str, Keep)]),
}

/// A [`Keep`](crate::lenient::Keep) of these fields, each with those of its own if not all of it is read.
#[macro_export]
macro_rules! keep {
    (@all) => { $crate::lenient::Keep::All };
    (@all { $($fields:tt)* }) => { $crate::keep! { $($fields)* } };
    ($($name:expr $(=> $fields:tt)?),* $(,)?) => {
        $crate::lenient::Keep::Fields(&[$(($name, $crate::keep!(@all $($fields)?))),*])
    };
}

/// A type that [`Lenient`] can read.
pub trait Subset: DeserializeOwned {
    /// The fields that the type reads.
    const KEEP: Keep = Keep::All;
}

// === impl Lenient ===

impl<T> Lenient<T> {
    /// The value, if it could be read.
    pub fn ok(&self) -> Option<&T> {
        match self {
            Self::Ok(value) => Some(value),
            Self::Malformed(_) => None,
        }
    }

    /// The value, or why it could not be read.
    pub fn as_result(&self) -> Result<&T, &str> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Malformed(reason) => Err(reason),
        }
    }
}

/// A value that is absent counts as its default.
impl<T: Default> Default for Lenient<T> {
    fn default() -> Self {
        Self::Ok(T::default())
    }
}

impl<T: Subset> Subset for Option<T> {
    const KEEP: Keep = T::KEEP;
}

impl<'de, T: Subset> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A typed parse cannot be resumed where it fails, hence the detour; it holds only what T reads.
        let value = Pruned(&T::KEEP).deserialize(deserializer)?;
        Ok(from_value(value))
    }
}

/// Reads a typed value; the error names the field.
fn from_value<T: DeserializeOwned>(value: Value) -> Lenient<T> {
    match serde_path_to_error::deserialize(value) {
        Ok(value) => Lenient::Ok(value),
        Err(error) => Lenient::Malformed(describe(error)),
    }
}

/// `path: what is wrong`, without the strings that were found.
pub(crate) fn describe<E: fmt::Display>(error: serde_path_to_error::Error<E>) -> String {
    let path = error.path().to_string();
    let message = scrub(&error.into_inner().to_string());
    if path == "." {
        message
    } else {
        // A path holds keys, which are as long as the object has them.
        text::printable_message(&format!("{path}: {message}"))
    }
}

/// Serde quotes strings that it did not expect; whatever stands in them stays out of logs.
pub(crate) fn scrub(message: &str) -> String {
    const LIMIT: usize = 200;
    let mut out = String::with_capacity(message.len().min(LIMIT));
    let mut rest = message;
    while let Some((before, quoted)) = rest.split_once('"') {
        out.push_str(before);
        let end = closing_quote(quoted);
        out.push('…');
        rest = end.and_then(|end| quoted.get(end + 1..)).unwrap_or_default();
    }
    out.push_str(rest);
    if out.chars().count() > LIMIT {
        out.chars().take(LIMIT).chain(['…']).collect()
    } else {
        out
    }
}

/// Index of the quote that ends a string in Rust's debug notation.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|b| {
        let end = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        end
    })
}

// === impl Pruned ===

/// Reads the wanted part of a document into a [`Value`]. Works with JSON and every other format that describes itself,
/// and fails on broken syntax only.
pub(crate) struct Pruned<'k>(pub(crate) &'k Keep);

impl<'de> DeserializeSeed<'de> for Pruned<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.0 {
            Keep::All => Value::deserialize(deserializer),
            Keep::Fields(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Pruned<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(entry) = entries.next_element_seed(Pruned(self.0))? {
            kept.push(entry);
        }
        Ok(Value::Array(kept))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let wanted = match self.0 {
            Keep::All => &[],
            Keep::Fields(wanted) => *wanted,
        };
        let mut kept = serde_json::Map::new();
        while let Some(Text(key)) = entries.next_key()? {
            match wanted.iter().find(|(name, _)| *name == key) {
                Some((name, keep)) => {
                    let value = entries.next_value_seed(Pruned(keep))?;
                    if !value.is_null() {
                        kept.insert((*name).to_owned(), value);
                    }
                }
                None => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(kept))
    }
}

#[cfg(test)]
mod tests;
