//! Kubernetes' two ways of writing a time.

use jiff::Timestamp;

/// `metav1.Time`: whole seconds, UTC.
pub(crate) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime`: exactly six fractional digits, UTC.
pub(crate) fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let at: Timestamp = "2026-11-21T07:08:09.1234567Z".parse().unwrap();
        assert_eq!(seconds(at), "2026-11-21T07:08:09Z");
        assert_eq!(micros(at), "2026-11-21T07:08:09.123456Z");
    }
}
