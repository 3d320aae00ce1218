//! Lists of foreign objects that must not be longer than any real one.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::{fmt, marker::PhantomData};

/// At most `MOST` entries. A longer list is refused before more of it is kept: an entry can take many times the memory
/// of its text.
pub(crate) struct Bounded<T, const MOST: usize>(pub(crate) Vec<T>);

impl<T, const MOST: usize> Default for Bounded<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Bounded<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T, const MOST: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Entries<T, MOST> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
                let mut kept = Vec::new();
                while let Some(entry) = entries.next_element()? {
                    if kept.len() == MOST {
                        return Err(A::Error::custom(format_args!("more than {MOST} entries")));
                    }
                    kept.push(entry);
                }
                Ok(kept)
            }
        }

        deserializer
            .deserialize_seq(Entries::<T, MOST>(PhantomData))
            .map(Self)
    }
}
