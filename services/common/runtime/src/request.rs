//! Checks that the gRPC APIs share: names, pages.

use std::collections::BTreeSet;

use rapidhash::v3::rapidhash_v3;
use tonic::Status;
use watchdog_api::names::is_dns_label;
use watchdog_client::wire::{MAX_PAGE_SIZE, MAX_SHOOTS};

use crate::rpc_error::{ErrorReason, error, invalid, invalid_field};

/// Page size where a request names none.
const DEFAULT_PAGE: usize = 100;

/// Characters of a wrong value that an error shows.
const MAX_SHOWN: usize = 80;

/// Checks a name of an object, which is an RFC 1123 label. `expected` is what the name is of, and how it looks.
///
/// # Errors
/// INVALID_ARGUMENT that names the field.
pub fn dns_label(field: &str, name: &str, expected: &str) -> Result<(), Status> {
    if is_dns_label(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_SHOWN).collect();
    Err(invalid_field(
        field,
        &format!("{shown:?} is not the name of a {expected}"),
    ))
}

/// Checks the name of a shoot, which is that of a namespace.
///
/// # Errors
/// INVALID_ARGUMENT that names the field.
pub fn shoot(field: &str, name: &str) -> Result<(), Status> {
    let expected = "namespace: use the shoot's namespace in the seed, for example shoot--project--name";
    dns_label(field, name, expected)
}

/// Checks the names of shoots.
///
/// # Errors
/// INVALID_ARGUMENT that names the field and the place.
pub fn shoots(names: Vec<String>) -> Result<BTreeSet<String>, Status> {
    if names.len() > MAX_SHOOTS {
        let description = format!(
            "{} names exceed the limit of {MAX_SHOOTS}: omit the field for all shoots",
            names.len()
        );
        return Err(invalid_field("shoots", &description));
    }
    for (i, name) in names.iter().enumerate() {
        shoot(&format!("shoots[{i}]"), name)?;
    }
    Ok(names.into_iter().collect())
}

/// The answer for a shoot that the seed does not have.
#[must_use]
pub fn unknown_shoot(name: &str) -> Status {
    let message = format!("the seed has no Cluster {name}: list the shoots that are known");
    error(ErrorReason::ShootNotFound, message)
}

/// Reads a repeated field of enum values. Unknown values are refused: the generated accessor drops them, and an empty
/// filter means all.
///
/// # Errors
/// INVALID_ARGUMENT that names the field and the place.
pub fn enum_values<E>(field: &str, values: &[i32]) -> Result<BTreeSet<i32>, Status>
where
    E: TryFrom<i32>,
{
    let known = |(i, value): (usize, &i32)| match E::try_from(*value) {
        Ok(_) if *value != 0 => Ok(*value),
        _ => Err(invalid_field(
            &format!("{field}[{i}]"),
            &format!("{value} is not a value of this enum: omit the field for all"),
        )),
    };
    values.iter().enumerate().map(known).collect()
}

/// The page that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Items in the page at most.
    pub size: usize,
    /// The last key of the previous page; none for the first page.
    pub after: Option<String>,
    /// A hash of the rest of the request. A token holds for requests with the same hash only.
    fingerprint: u64,
}

impl PageRequest {
    /// Reads the size and the token. `filter` is everything else that the request says, its method included.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the size is negative, or the token was not given out for such a request.
    pub fn read(size: i32, token: &str, filter: &[&str]) -> Result<Self, Status> {
        let size = match usize::try_from(size.min(MAX_PAGE_SIZE)) {
            Ok(0) => DEFAULT_PAGE,
            Ok(size) => size,
            Err(_) => return Err(invalid_field("page_size", "is negative: use 0 for the default")),
        };
        // No filter contains the separator.
        let fingerprint = rapidhash_v3(filter.join("\0").as_bytes());
        Ok(Self {
            size,
            after: read_token(token, fingerprint)?,
            fingerprint,
        })
    }

    /// The token of the page after the item with this key. Any replica understands it: it holds nothing of this one.
    #[must_use]
    pub fn token_after(&self, key: &str) -> String {
        format!("{:016x}:{key}", self.fingerprint)
    }
}

fn read_token(token: &str, expected: u64) -> Result<Option<String>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let parts = token.split_once(':').filter(|(_, key)| !key.is_empty());
    let read = parts.and_then(|(hash, key)| Some((u64::from_str_radix(hash, 16).ok()?, key)));
    match read {
        Some((fingerprint, key)) if fingerprint == expected => Ok(Some(key.to_owned())),
        Some(_) => Err(invalid(
            ErrorReason::PageTokenMismatch,
            "page_token",
            "belongs to a request with another scope or filter: repeat the fields of the request for the previous \
             page, or leave page_token out to begin with the first page",
        )),
        None => Err(invalid(
            ErrorReason::InvalidPageToken,
            "page_token",
            "was not issued by this API: use next_page_token of the previous page, unchanged",
        )),
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;

    #[test]
    fn names_of_shoots() {
        for good in ["shoot--a--b", "x", "0"] {
            assert!(shoot("shoot", good).is_ok(), "{good}");
        }
        for bad in ["", "Shoot", "-a", "a-", "a.b", "a/b", &"x".repeat(64)] {
            let status = shoot("shoot", bad).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            assert!(status.message().starts_with("shoot: "), "{}", status.message());
        }
        assert!(
            shoots(vec!["a".into(), "B".into()])
                .unwrap_err()
                .message()
                .starts_with("shoots[1]: ")
        );
        assert!(shoots(vec!["a".into(); 1_001]).is_err());
    }

    #[test]
    fn sizes_of_pages() {
        for (asked, size) in [(0, 100), (7, 7), (i32::MAX, 1_000)] {
            assert_eq!(PageRequest::read(asked, "", &[]).unwrap().size, size);
        }
        assert!(PageRequest::read(-1, "", &[]).is_err());
    }

    #[test]
    fn a_page_token_holds_for_requests_with_the_same_filter() {
        let filter = ["ListVerdicts", "1", "2,3"];
        let token = PageRequest::read(0, "", &filter)
            .unwrap()
            .token_after("shoot/a:b");
        let next = PageRequest::read(0, &token, &filter).unwrap();
        assert_eq!(next.after.as_deref(), Some("shoot/a:b"));
        let reason = |token: &str, filter: &[&str]| {
            let status = PageRequest::read(0, token, filter).unwrap_err();
            assert!(
                status.message().starts_with("page_token: "),
                "{}",
                status.message()
            );
            status.get_details_error_info().unwrap().reason
        };
        assert_eq!(reason(&token, &["ListVerdicts", "1", "2"]), "PAGE_TOKEN_MISMATCH");
        for bad in ["a", "x:a", "00", "00:", "after:a"] {
            assert_eq!(reason(bad, &filter), "INVALID_PAGE_TOKEN", "{bad}");
        }
    }
}
