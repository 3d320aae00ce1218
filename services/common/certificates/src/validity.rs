//! From when to when a certificate is valid.

use jiff::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The validity of a certificate, by the clock of its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidityPeriod {
    /// Its first second.
    pub not_before: Timestamp,
    /// Its last second.
    pub not_after: Timestamp,
}

impl ValidityPeriod {
    /// Of a certificate in DER; none if it cannot be read.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(Self::of_parsed(&certificate))
    }

    pub(crate) fn of_parsed(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        // X.509's "never ends", 9999-12-31T23:59:59Z, is a day later than the last moment of a Timestamp.
        let moment = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        Self {
            not_before: moment(validity.not_before.timestamp()),
            not_after: moment(validity.not_after.timestamp()),
        }
    }

    /// True if the certificate is valid at this time.
    #[must_use]
    pub fn contains(&self, at: Timestamp) -> bool {
        self.not_before <= at && at <= self.not_after
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(last_year: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.not_after = date_time_ymd(last_year, 2, 3);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_is_read_in_both_notations_of_x509() {
        for year in [2020, 2049, 2050, 4096] {
            let expected: Timestamp = format!("{year}-02-03T00:00:00Z").parse().unwrap();
            let read = ValidityPeriod::of(&certificate(year)).map(|validity| validity.not_after);
            assert_eq!(read, Some(expected), "{year}");
        }
    }

    #[test]
    fn a_certificate_that_never_ends_is_read() {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.not_after = time::OffsetDateTime::from_unix_timestamp(253_402_300_799).unwrap();
        let key = KeyPair::generate().unwrap();
        let read = ValidityPeriod::of(params.self_signed(&key).unwrap().der());
        assert_eq!(read.map(|validity| validity.not_after), Some(Timestamp::MAX));
    }

    #[test]
    fn nothing_is_read_from_anything_else() {
        let whole = certificate(2030);
        for cut in 0..whole.len() {
            assert_eq!(ValidityPeriod::of(&whole[..cut]), None, "{cut}");
        }
        for bad in [
            b"".as_slice(),
            b"\x30",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x89aaaaaaaaa",
        ] {
            assert_eq!(ValidityPeriod::of(bad), None);
        }
    }
}
