//! The metadata of every answer: which replica sent it, of which version, and what keeps it from being ready.

use http::{HeaderName, HeaderValue, Response};

use crate::readiness::Readiness;

/// Identity of the replica.
const REPLICA: HeaderName = HeaderName::from_static("watchdog-replica");

/// Version of the program.
const VERSION: HeaderName = HeaderName::from_static("watchdog-version");

/// The blockers that keep the replica from being ready, one value each, as on /readyz.
const BLOCKER: HeaderName = HeaderName::from_static("watchdog-blocker");

/// Blockers in one answer at most.
const MAX_BLOCKERS: usize = 16;

/// Characters of a blocker at most.
const MAX_CHARACTERS: usize = 300;

/// Adds the metadata of the replica with this identity to an answer, unless another one gave it.
pub(crate) fn describe<B>(
    identity: &str,
    readiness: Readiness,
) -> impl Fn(Response<B>) -> Response<B> + Clone + use<B> {
    let replica = ascii(identity);
    move |mut response| {
        let headers = response.headers_mut();
        if headers.contains_key(REPLICA) {
            return response;
        }
        headers.insert(REPLICA, replica.clone());
        headers.insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
        for (name, why) in readiness.blockers().into_iter().take(MAX_BLOCKERS) {
            headers.append(BLOCKER, ascii(&format!("{name}: {why}")));
        }
        response
    }
}

/// A value of visible ASCII: other characters become a question mark.
fn ascii(text: &str) -> HeaderValue {
    let visible = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let text: String = text.chars().take(MAX_CHARACTERS).map(visible).collect();
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_replica_and_what_blocks_it() {
        let readiness = Readiness::default();
        let describe = describe::<()>("weeder-0\u{e9}", readiness.clone());
        let headers = |response: Response<()>| response.headers().clone();
        let ready = headers(describe(Response::new(())));
        assert_eq!(ready[REPLICA], "weeder-0?");
        assert_eq!(ready[VERSION], env!("CARGO_PKG_VERSION"));
        assert!(ready.get(BLOCKER).is_none());
        let mut passed_on = Response::new(());
        let leader = HeaderValue::from_static("weeder-1");
        passed_on.headers_mut().insert(REPLICA, leader.clone());
        assert_eq!(headers(describe(passed_on))[REPLICA], leader);
        let _blocker = readiness.block("permissions", "missing:\nlist leases");
        let blocked = headers(describe(Response::new(())));
        assert_eq!(blocked[BLOCKER], "permissions: missing:?list leases");
    }
}
