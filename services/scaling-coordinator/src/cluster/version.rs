//! Comparing resource versions.

/// Whether `version` is as new as `other` or newer. Resource versions are numbers on every API server that keeps its
/// objects in etcd; where they are not, only equal ones are known to be as new.
#[must_use]
pub fn at_least(version: &str, other: &str) -> bool {
    version == other || newer(version, other)
}

/// Whether `version` is known to be newer than `other`.
#[must_use]
pub fn newer(version: &str, other: &str) -> bool {
    match (version.parse::<u64>(), other.parse::<u64>()) {
        (Ok(version), Ok(other)) => version > other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_and_nothing_else() {
        assert!(at_least("10", "9") && newer("10", "9"));
        assert!(at_least("9", "9") && !newer("9", "9"));
        assert!(!at_least("9", "10"));
        assert!(at_least("x", "x") && !at_least("y", "x") && !newer("y", "x"));
    }
}
