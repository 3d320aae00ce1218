//! Requests of callers to the gRPC APIs, and their page tokens.

use std::future::Future;
use std::sync::LazyLock;

use futures::FutureExt as _;
use lease_probe::LeaseProbeApi;
use prost::Message;
use scaling_coordinator::ScalingApi;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;
use watchdog_proto::probe::v1::lease_probe_service_server::LeaseProbeService as _;
use watchdog_proto::scaling::v1::scaling_service_server::ScalingService as _;
use watchdog_proto::weeder::v1::weeder_service_server::WeederService as _;
use watchdog_runtime::grpc_server::MAX_REQUEST_BYTES;
use watchdog_runtime::request::PageRequest;
use watchdog_watch_stream::item::{NamePair, StreamItem};
use watchdog_watch_stream::seed_view::SeedView;
use weeder::WeederApi;

use crate::check_reason;

/// For timers that are never waited for.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
});

/// A request: the first byte chooses the method, the rest is the message. It is answered, or refused with a field and a
/// reason, before anything is waited for.
pub(crate) fn requests(data: &[u8]) {
    let Some((method, data)) = data.split_first() else {
        return;
    };
    let data = data.get(..MAX_REQUEST_BYTES).unwrap_or(data);
    let probe = LeaseProbeApi {
        verdicts: empty_view(),
        is_unknown: Box::new(|_| false),
    };
    let scaling = ScalingApi {
        scaling: empty_view(),
        is_unknown: Box::new(|_| false),
        plan: Box::new(|_, _| None),
        leader: Box::new(String::new),
    };
    let weeder = WeederApi {
        readiness: empty_view(),
        weeders: empty_view(),
        leader: Box::new(String::new),
    };
    RUNTIME.block_on(async {
        match method {
            b'a' => call(data, |request| probe.watch_verdicts(request)),
            b'b' => call(data, |request| probe.get_verdict(request)),
            b'c' => call(data, |request| probe.list_verdicts(request)),
            b'd' => call(data, |request| scaling.watch_scaling(request)),
            b'e' => call(data, |request| scaling.get_scaling(request)),
            b'f' => call(data, |request| scaling.list_scaling(request)),
            b'g' => call(data, |request| scaling.plan_scaling(request)),
            b'j' => call(data, |request| weeder.watch_endpoint_readiness(request)),
            b'k' => call(data, |request| weeder.list_endpoint_readiness(request)),
            b'l' => call(data, |request| weeder.watch_weeders(request)),
            b'm' => call(data, |request| weeder.get_weeder(request)),
            b'n' => call(data, |request| weeder.list_weeders(request)),
            b'o' => call(data, |request| probe.get_seed_summary(request)),
            b'p' => call(data, |request| probe.list_replicas(request)),
            b'q' => call(data, |request| scaling.get_seed_summary(request)),
            b'r' => call(data, |request| weeder.get_seed_summary(request)),
            b's' => call(data, |request| weeder.get_endpoint_readiness(request)),
            _ => {}
        }
    });
}

fn empty_view<M: StreamItem>() -> SeedView<M> {
    SeedView::new("empty".into(), CancellationToken::new())
}

/// Decodes a message as the server does, and calls a method with it.
fn call<M, A, F>(data: &[u8], method: impl FnOnce(Request<M>) -> F)
where
    M: Message + Default + PartialEq + std::fmt::Debug,
    F: Future<Output = Result<Response<A>, Status>>,
{
    let Ok(message) = M::decode(data) else {
        return;
    };
    let again = M::decode(message.encode_to_vec().as_slice());
    assert_eq!(again.as_ref(), Ok(&message));
    // Not ready while it waits for other replicas.
    if let Some(Err(status)) = method(Request::new(message)).now_or_never() {
        check_refusal(&status);
    }
}

fn check_refusal(status: &Status) {
    check_reason(status.message());
    assert!(
        status
            .get_details_error_info()
            .is_some_and(|info| !info.reason.is_empty()),
        "{status:?}"
    );
    match status.code() {
        Code::InvalidArgument => {
            let violations = status
                .get_details_bad_request()
                .map(|details| details.field_violations);
            let Some([violation]) = violations.as_deref() else {
                panic!("{status:?}");
            };
            assert!(status.message().starts_with(&violation.field), "{status:?}");
        }
        Code::NotFound | Code::Unavailable => {}
        _ => panic!("{status:?}"),
    }
}

/// A page token, and in the next line a key for another one: what was given out is taken for the same request only, and
/// everything else is refused.
pub(crate) fn page_token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (token, key) = text.split_once('\n').unwrap_or((text, ""));
    let read = |token: &str, filter| PageRequest::read(0, token, &["ListWeeders", filter]);
    match read(token, "one") {
        Ok(page) => {
            if let Some(after) = &page.after {
                assert_eq!(read(&page.token_after(after), "one").ok().as_ref(), Some(&page));
            }
        }
        Err(status) => check_refusal(&status),
    }
    if let (Ok(page), false) = (read("", "one"), key.is_empty()) {
        let token = page.token_after(key);
        let next = read(&token, "one").expect("it was given out");
        assert_eq!(next.after.as_deref(), Some(key));
        check_refusal(&read(&token, "two").expect_err("of another request"));
        if let Ok(pair) = key.parse::<NamePair>() {
            assert_eq!(pair.to_string(), key);
        }
    }
}
