//! Text from outside: bounded where it enters, and without characters that a terminal or a log acts upon.

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny},
};
use std::{borrow::Cow, sync::Arc};

/// A string that is borrowed from the document unless it has escapes. (Serde's own `Cow` always allocates.)
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The most bytes of a name; label values are shorter. API servers enforce both, but not every server is one.
const LONGEST_NAME: usize = 253;

/// The most bytes of a provider ID: that of Azure holds a subscription, a resource group and a machine, 274 bytes.
const LONGEST_ID: usize = 512;

/// The most characters of a message or a reason.
const LONGEST_MESSAGE: usize = 512;

/// True unless a terminal or a log may act upon the character, or nobody sees it: control characters (C0, DEL and C1),
/// line and paragraph separators, those that change the direction of text, and those without width, by which two names
/// could look alike (`Default_Ignorable_Code_Point` of Unicode).
#[must_use]
pub fn is_printable(character: char) -> bool {
    // Nearly all names are ASCII, and every probe looks at those of all nodes.
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    !character.is_control()
        && !matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{17b4}'
                | '\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The text with a space for each character that is not printable.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if is_printable(c) { c } else { ' ' })
        .collect()
}

/// A name of something that cannot be decoded, for people: at most 253 bytes.
#[must_use]
pub fn printable_name(text: &str) -> String {
    let end = text.floor_char_boundary(LONGEST_NAME);
    printable(text.get(..end).unwrap_or_default())
}

/// A message or reason from outside, for people: at most 512 characters.
#[must_use]
pub fn printable_message(text: &str) -> String {
    printable(&begin(text, LONGEST_MESSAGE))
}

/// At most this many characters of a text, with a mark where it was cut.
#[must_use]
pub fn begin(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        None => text.to_owned(),
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned() + "…",
    }
}

/// A text of a file cut to what fits into a message.
pub(crate) fn cut(text: &str) -> String {
    begin(text, 60)
}

fn bounded(text: &str, most: usize) -> Result<Arc<str>, &'static str> {
    if text.len() > most {
        return Err("must not be longer than any real one");
    }
    if !text.chars().all(is_printable) {
        return Err("must not hold control characters");
    }
    Ok(Arc::from(text))
}

/// A non-empty name that many owners share.
///
/// # Errors
/// Says why no API server would take it.
pub fn name(text: &str) -> Result<Arc<str>, &'static str> {
    match text {
        "" => Err("must not be empty"),
        text => bounded(text, LONGEST_NAME),
    }
}

/// The value of a label, which may be empty.
pub(crate) fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
    optional(deserializer, LONGEST_NAME)
}

/// A `spec.providerID`; none where it is empty.
pub(crate) fn provider_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
    Ok(optional(deserializer, LONGEST_ID)?.filter(|id| !id.is_empty()))
}

fn optional<'de, D: Deserializer<'de>>(deserializer: D, most: usize) -> Result<Option<Arc<str>>, D::Error> {
    let text = Option::<Text>::deserialize(deserializer)?;
    text.map(|text| bounded(&text.0, most))
        .transpose()
        .map_err(D::Error::custom)
}

/// A [`name`]. (Serde's own `Arc<str>` allocates twice.)
pub(crate) fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    let Text(text) = Text::deserialize(deserializer)?;
    name(&text).map_err(D::Error::custom)
}

/// A `resourceVersion` as a number, by which objects can be ordered; 0 where it is none.
pub(crate) fn revision<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = Option::<Text>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.0.parse().ok()).unwrap_or(0))
}

/// True: the field is there, whatever its value.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_upon_is_replaced() {
        for (text, shown) in [
            ("shoot--a--b", "shoot--a--b"),
            ("é, 日本 …", "é, 日本 …"),
            ("a\u{1b}[31mb\u{7}", "a [31mb "),
            ("a\u{9b}31mb\u{85}c\u{7f}", "a 31mb c "),
            ("a\r\n\tb", "a   b"),
            ("\u{202e}abc\u{2066}d\u{200f}\u{2028}", " abc d  "),
            (
                "a\u{200b}b\u{feff}c\u{ad}d\u{e0041}e\u{115f}f\u{3164}g",
                "a b c d e f g",
            ),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    #[test]
    fn names_and_messages_have_a_length() {
        assert_eq!(printable_name(&"x".repeat(300_000)).len(), 253);
        assert_eq!(printable_name(&"é".repeat(200)).len(), 252, "no half character");
        assert_eq!(printable_message(&"é".repeat(512)).chars().count(), 512);
        assert_eq!(printable_message(&"é".repeat(300_000)).chars().count(), 513);
        assert_eq!(printable_name(""), "");
    }

    #[test]
    fn a_name_that_no_api_server_takes_is_none() {
        assert!(name("node-1.example").is_ok());
        for wrong in ["", "a\nb", "\u{1b}[2J", &"x".repeat(254)] {
            assert!(name(wrong).is_err(), "{wrong:?}");
        }
    }
}
