//! Objects of the API server, reduced to what is read of them. A value of the wrong type is reported, and hides no
//! other object of the list or watch that it came in.

use crate::text::{self, Text};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use std::fmt;

/// The fields of a document that are read. Everything else is skipped without being stored, and so is null, which is
/// how Go writes a field that is not set. Of a field that is there twice the last one counts, as in Go.
/// [`keep!`](crate::keep) lists them.
#[derive(Debug)]
pub enum Keep {
    /// The value and all that is in it.
    All,
    /// Of a mapping, these fields; of a list, these fields of each entry.
    Fields(&'static [(&'static str, Keep)]),
}

/// A [`Keep`](crate::subset::Keep) of these fields, each with those of its own if not all of it is read.
#[macro_export]
macro_rules! keep {
    (@all) => { $crate::subset::Keep::All };
    (@all { $($fields:tt)* }) => { $crate::keep! { $($fields)* } };
    ($($name:expr $(=> $fields:tt)?),* $(,)?) => {
        $crate::subset::Keep::Fields(&[$(($name, $crate::keep!(@all $($fields)?))),*])
    };
}

/// The kept fields of an object.
#[derive(Debug)]
pub struct Subset(pub(crate) Value);

impl Subset {
    /// Reads an object, of JSON or any other format that describes itself. A typed parse cannot be resumed where it
    /// fails, hence the detour.
    ///
    /// # Errors
    /// On broken syntax only.
    pub fn read<'de, D: Deserializer<'de>>(deserializer: D, keep: &Keep) -> Result<Self, D::Error> {
        Pruned(keep).deserialize(deserializer).map(Self)
    }

    /// The value at a path such as `spec.replicas`; the default where it is absent.
    ///
    /// # Errors
    /// The path and what is wrong there, for people; never a string that was found.
    pub fn field<T: DeserializeOwned + Default>(&self, path: &str) -> Result<T, String> {
        let (mut value, mut seen) = (&self.0, String::new());
        for name in path.split('.') {
            let Value::Object(fields) = value else {
                return Err(located(&seen, "must be an object"));
            };
            let Some(found) = fields.get(name) else {
                return Ok(T::default());
            };
            value = found;
            if !seen.is_empty() {
                seen.push('.');
            }
            seen.push_str(name);
        }
        serde_path_to_error::deserialize(value).map_err(|error| describe(path, error))
    }
}

/// `path: what is wrong`, without the strings that were found. The path is below `at`.
pub(crate) fn describe<E: fmt::Display>(at: &str, error: serde_path_to_error::Error<E>) -> String {
    let below = error.path().to_string();
    let path = match &*below {
        "." => at.to_owned(),
        below if at.is_empty() || below.starts_with('[') => format!("{at}{below}"),
        below => format!("{at}.{below}"),
    };
    located(&path, &scrub(&error.into_inner().to_string()))
}

pub(crate) fn located(path: &str, message: &str) -> String {
    match path {
        "" => message.to_owned(),
        // A path holds keys, which are as long as the object has them.
        path => text::printable_message(&format!("{path}: {message}")),
    }
}

/// Serde quotes strings that it did not expect; whatever stands in them stays out of logs.
pub(crate) fn scrub(message: &str) -> String {
    const LIMIT: usize = 200;
    match (message.split_once('"'), message.rsplit_once('"')) {
        (Some((before, _)), Some((_, after))) => text::begin(&format!("{before}…{after}"), LIMIT),
        _ => text::begin(message, LIMIT),
    }
}

// === impl Pruned ===

/// Reads the kept part of a document into a [`Value`].
struct Pruned<'k>(&'k Keep);

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
            let Some((name, keep)) = wanted.iter().find(|(name, _)| *name == key) else {
                entries.next_value::<IgnoredAny>()?;
                continue;
            };
            match entries.next_value_seed(Pruned(keep))? {
                // It takes back one before it.
                Value::Null => drop(kept.remove(*name)),
                value => drop(kept.insert((*name).to_owned(), value)),
            }
        }
        Ok(Value::Object(kept))
    }
}

#[cfg(test)]
mod tests;
