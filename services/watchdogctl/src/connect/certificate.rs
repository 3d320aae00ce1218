//! Reads when a certificate ends.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xA0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of a certificate's validity; none if it cannot be read.
///
/// RFC 5280: Certificate { tbs { version?, serial, algorithm, issuer, validity { not before, not after }, … } }
pub(crate) fn end(der: &[u8]) -> Option<Timestamp> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = skip(rest)?;
    }
    for _serial_algorithm_issuer in 0..3 {
        rest = skip(rest)?;
    }
    let (validity, _) = element(rest, SEQUENCE)?;
    time(skip(validity)?)
}

/// The content of an element with this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let bytes = long - 0x80;
            let (length, rest) = rest.split_at_checked(bytes)?;
            if bytes > size_of::<u32>() {
                return None;
            }
            let length = length.iter().fold(0, |all, byte| (all << 8) | usize::from(*byte));
            (length, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    (*found == tag).then_some((content, rest))
}

fn skip(der: &[u8]) -> Option<&[u8]> {
    element(der, *der.first()?).map(|(_, rest)| rest)
}

/// `YYMMDDHHMMSSZ`, where years below 50 are of this century, or `YYYYMMDDHHMMSSZ`.
fn time(der: &[u8]) -> Option<Timestamp> {
    let (text, century) = match der.first()? {
        &UTC_TIME => {
            let (text, _) = element(der, UTC_TIME)?;
            let century = if text.first()? < &b'5' { "20" } else { "19" };
            (text, century)
        }
        _ => (element(der, GENERALIZED_TIME)?.0, ""),
    };
    let text = format!("{century}{}", std::str::from_utf8(text).ok()?);
    let at = DateTime::strptime("%Y%m%d%H%M%SZ", &text).ok()?;
    at.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp())
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
    fn the_end_is_read_in_both_notations() {
        for year in [2020, 2049, 2050, 4096] {
            let expected: Timestamp = format!("{year}-02-03T00:00:00Z").parse().unwrap();
            assert_eq!(end(&certificate(year)), Some(expected), "{year}");
        }
    }

    #[test]
    fn nothing_is_read_from_anything_else() {
        let whole = certificate(2030);
        for cut in 0..whole.len() {
            let _ = end(&whole[..cut]);
        }
        for bad in [
            b"".as_slice(),
            b"\x30",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x89aaaaaaaaa",
        ] {
            assert_eq!(end(bad), None);
        }
    }
}
