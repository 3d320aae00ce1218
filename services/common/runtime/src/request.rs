//! Checks that the gRPC APIs share: names, pages.

use std::collections::BTreeSet;

use tonic::Status;

/// Shoots that one request may name.
const MAX_SHOOTS: usize = 1_000;

/// Page size where a request names none.
const DEFAULT_PAGE: usize = 100;

/// Largest page. A verdict with its evidence stays below 2 KiB, so a page stays below 2 MiB.
const MAX_PAGE: usize = 1_000;

/// Checks the name of a shoot, which is a namespace name: an RFC 1123 label.
///
/// # Errors
/// INVALID_ARGUMENT that names the field.
pub fn shoot(field: &str, name: &str) -> Result<(), Status> {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let good = !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(valid)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if good {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Status::invalid_argument(format!(
        "{field}: {shown:?} is not the name of a namespace: use the shoot's namespace in the seed, for example \
         shoot--project--name"
    )))
}

/// Checks the names of shoots.
///
/// # Errors
/// INVALID_ARGUMENT that names the field and the place.
pub fn shoots(names: Vec<String>) -> Result<BTreeSet<String>, Status> {
    if names.len() > MAX_SHOOTS {
        return Err(Status::invalid_argument(format!(
            "shoots: {} names are more than {MAX_SHOOTS}: leave the field out for all shoots",
            names.len()
        )));
    }
    for (i, name) in names.iter().enumerate() {
        shoot(&format!("shoots[{i}]"), name)?;
    }
    Ok(names.into_iter().collect())
}

/// The answer for a shoot that nobody knows.
#[must_use]
pub fn unknown_shoot(name: &str) -> Status {
    Status::not_found(format!(
        "the seed has no Cluster {name}: list the shoots that are known"
    ))
}

/// The size of a page.
///
/// # Errors
/// INVALID_ARGUMENT when it is negative.
pub fn page_size(asked: i32) -> Result<usize, Status> {
    match usize::try_from(asked) {
        Ok(0) => Ok(DEFAULT_PAGE),
        Ok(asked) => Ok(asked.min(MAX_PAGE)),
        Err(_) => Err(Status::invalid_argument(
            "page_size: is negative: use 0 for the default",
        )),
    }
}

/// The token of the page after the item with this key.
#[must_use]
pub fn next_page_token(key: &str) -> String {
    format!("after:{key}")
}

/// The key that a page token stands for; none for the first page.
///
/// # Errors
/// INVALID_ARGUMENT when the token is not one that was given out.
pub fn page_token(token: &str) -> Result<Option<String>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    match token.strip_prefix("after:") {
        Some(key) => Ok(Some(key.to_owned())),
        None => Err(Status::invalid_argument(
            "page_token: was not given out by this API: use next_page_token of the previous page, unchanged",
        )),
    }
}

#[cfg(test)]
mod tests {
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
    fn pages() {
        for (asked, size) in [(0, 100), (7, 7), (i32::MAX, 1_000)] {
            assert_eq!(page_size(asked).unwrap(), size);
        }
        assert!(page_size(-1).is_err());
        assert_eq!(page_token(&next_page_token("a")).unwrap().as_deref(), Some("a"));
        assert_eq!(page_token("").unwrap(), None);
        assert!(page_token("a").is_err());
    }
}
