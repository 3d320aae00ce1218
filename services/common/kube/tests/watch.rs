//! A watch against an API server that takes a permission away and gives it back, or fails.

#![cfg(test)]

use std::collections::BTreeSet;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{Either, Full, StreamBody};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use kube::client::Body;
use kube::runtime::watcher;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower::BoxError;
use watchdog_kube::seed::connect;
use watchdog_kube::watch::{Change, Watch};
use watchdog_runtime::args::LogFormat;
use watchdog_runtime::failure::Reason;
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::telemetry;
use watchdog_sandbox::{ApiServer, AuditEntry, Fault, FaultAction, Rule};
use watchdog_test_support::in_process::{CapturedOutput, ServiceFiles, api_server, eventually, until_ready};
use watchdog_test_support::sandboxed::client;

/// A watch of the Leases.
fn leases(client: kube::Client) -> Watch<Lease> {
    Watch {
        name: "leases".into(),
        api: Api::namespaced(client, "garden"),
        config: watcher::Config::default(),
        ends_if_not_served: false,
    }
}

#[tokio::test]
async fn a_quiet_watch_that_was_refused_for_a_while_is_ready_again() {
    let api = api_server(&["garden"]).await.unwrap();
    let client = client(&api.kubeconfig("watcher")).await.unwrap();
    let (readiness, stop) = (Readiness::default(), CancellationToken::new());
    let listed = Arc::new(Mutex::new(0));
    let watch = leases(client);
    let count = listed.clone();
    let on_change = move |change| match change {
        Change::Synced(keys) if keys == BTreeSet::new() => *count.lock() += 1,
        Change::ListBegins | Change::Restored => {}
        change => panic!("nothing is there, and yet {change:?}"),
    };
    let run = tokio::spawn(watch.run(readiness.clone(), stop.clone(), on_change));
    until_ready(&readiness, true).await;
    assert_eq!(*listed.lock(), 1);

    eventually("it watches", || api.counters().open_watches > 0).await;
    // The authorizer refuses for a moment, just when the watch is opened again. Nothing changes afterwards either.
    api.deny(Rule::default());
    api.drop_watches();
    until_ready(&readiness, false).await;
    let why = readiness.lines().join("\n");
    assert!(
        why.contains("leases: the seed refuses access") && why.contains("forbidden"),
        "{why}"
    );
    api.allow_all();
    until_ready(&readiness, true).await;
    assert!(readiness.failures().is_empty(), "{:?}", readiness.lines());
    assert!(*listed.lock() > 1, "a complete list says that it works again");
    stop.cancel();
    run.await.unwrap().unwrap();
}

/// True for the question whether etcd was restored.
fn is_check(entry: &AuditEntry) -> bool {
    entry.query.split('&').any(|part| part == "limit=1")
}

/// Where the pauses began anew with each list, there was one a second, and two lines in the log for each.
#[tokio::test]
async fn a_seed_that_goes_on_failing_gets_ever_fewer_lists_and_one_line_in_the_log() {
    let refused = |api: &ApiServer| api.deny(Rule::default());
    let broken = |api: &ApiServer| {
        api.inject(Fault::always(FaultAction::InternalError));
    };
    for (fail, reason) in [
        (&refused as &dyn Fn(&ApiServer), "forbidden"),
        (&broken, "server_error"),
    ] {
        let kept = CapturedOutput::default();
        let writer = kept.clone();
        let (subscriber, _) = telemetry::subscriber(LogFormat::Text, "info", move || writer.clone()).unwrap();
        let _default = tracing::subscriber::set_default(subscriber);
        let api = api_server(&["garden"]).await.unwrap();
        let client = client(&api.kubeconfig("watcher")).await.unwrap();
        let watch = leases(client);
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        fail(&api);
        let run = tokio::spawn(watch.run(readiness.clone(), stop.clone(), |_| {}));
        let lists = || {
            let mut audit = api.audit();
            audit.retain(|entry| entry.verb == "list" && !is_check(entry));
            audit
        };
        eventually("the seed is asked four times", || lists().len() >= 4).await;
        let [.., before, last] = &lists()[..] else {
            unreachable!("there are four")
        };
        let pause = last.time.duration_since(before.time).as_secs_f64();
        assert!(pause > 1.5, "{reason}: {pause} s after three failures");
        let lines = |text: &str| kept.text().lines().filter(|line| line.contains(text)).count();
        assert_eq!(lines(" WARN "), 1, "{}", kept.text());
        assert_eq!(lines(reason), 1, "{}", kept.text());

        api.allow_all();
        api.clear_faults();
        until_ready(&readiness, true).await;
        assert_eq!(lines("watch works again"), 1, "{}", kept.text());
        stop.cancel();
        run.await.unwrap().unwrap();
    }
}

/// kube's watcher opened the next one at once, hundreds in a second, and nothing showed it.
#[tokio::test]
async fn watches_that_end_at_once_have_failed() {
    let api = api_server(&["garden"]).await.unwrap();
    let files = ServiceFiles::new("").unwrap();
    let kubeconfig = files.kubeconfig(&api, "watcher").unwrap();
    let watch = leases(connect(Some(&kubeconfig), "watcher").await.unwrap());
    api.inject(Fault::always(FaultAction::Empty).verb("watch"));
    let (readiness, stop) = (Readiness::default(), CancellationToken::new());
    let run = tokio::spawn(watch.run(readiness.clone(), stop.clone(), |_| {}));
    let watches = || api.audit().iter().filter(|entry| entry.verb == "watch").count();
    eventually("three have failed", || watches() >= 3).await;
    eventually("it is shown", || !readiness.failures().is_empty()).await;
    assert!(watches() <= 5, "{}", watches());
    let [(name, _, failure)] = &readiness.failures()[..] else {
        panic!("{:?}", readiness.failures())
    };
    assert_eq!(
        (&**name, failure.reason),
        ("leases", Reason::Connection),
        "{failure}"
    );
    assert!(failure.to_string().contains("ended within a second"), "{failure}");

    api.clear_faults();
    eventually("it works again", || readiness.failures().is_empty()).await;

    // An answer that says what is wrong ends as soon, and stays what is shown.
    let before = watches();
    api.inject(Fault::always(FaultAction::InternalError).verb("watch"));
    eventually("two are refused", || watches() >= before + 2).await;
    let failures = readiness.failures();
    assert_eq!(failures[0].2.reason, Reason::ServerError, "{}", failures[0].2);
    stop.cancel();
    run.await.unwrap().unwrap();
}

/// The body of a watch that brings nothing.
fn silence() -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> {
    stream::pending()
}

/// A seed without a network, so that minutes pass at once: answers every request, or fails every one.
fn seed_that_fails(fails: Arc<AtomicBool>) -> kube::Client {
    let answer = move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let status = json!({"kind": "Status", "code": 500, "message": "the conversion webhook fails"});
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        let (code, body) = match (fails.load(Ordering::SeqCst), query.contains("watch=true")) {
            (true, _) => (500, Either::Left(Full::from(status.to_string()))),
            (false, true) => (200, Either::Right(StreamBody::new(silence()))),
            (false, false) => (200, Either::Left(Full::from(list.to_string()))),
        };
        ready(Response::builder().status(code).body(body))
    };
    kube::Client::new(tower::service_fn(answer), "garden")
}

/// Every replica was ready, and watchdogctl check found nothing wrong, while no new shoot was seen.
#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_listed_for_minutes_blocks_until_it_can() {
    let fails = Arc::new(AtomicBool::new(false));
    let watch = leases(seed_that_fails(fails.clone()));
    let (readiness, stop) = (Readiness::default(), CancellationToken::new());
    let run = tokio::spawn(watch.run(readiness.clone(), stop.clone(), |_| {}));
    until_ready(&readiness, true).await;

    let after = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
    fails.store(true, Ordering::SeqCst);
    after(90).await;
    assert!(readiness.is_ready(), "a restart may take as long");
    after(90).await;
    let why = &readiness.blockers()["leases"];
    assert!(
        why.contains("cannot be listed: the conversion webhook fails"),
        "{why}"
    );
    fails.store(false, Ordering::SeqCst);
    after(10).await;
    assert!(readiness.is_ready(), "{:?}", readiness.lines());

    stop.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn whether_etcd_was_restored_is_asked_again_soon_after_a_failure() {
    let api = api_server(&["garden"]).await.unwrap();
    let client = client(&api.kubeconfig("watcher")).await.unwrap();
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "probe"}})).unwrap();
    let all = Api::<Lease>::namespaced(client.clone(), "garden");
    all.create(&PostParams::default(), &lease).await.unwrap();
    let fails = |query| Fault::always(FaultAction::InternalError).query(query).times(1);
    api.inject(fails("watch=true"));
    api.inject(fails("limit=1"));
    let watch = leases(client);
    let stop = CancellationToken::new();
    let run = tokio::spawn(watch.run(Readiness::default(), stop.clone(), |_| {}));
    let checks = || {
        let mut audit = api.audit();
        audit.retain(is_check);
        audit
    };
    eventually("it is asked again", || checks().len() >= 2).await;
    let [failed, again] = &checks()[..2] else {
        unreachable!("there are two")
    };
    assert_eq!((failed.code, again.code), (500, 200));
    let after = again.time.duration_since(failed.time).as_secs_f64();
    assert!(
        after < 10.0,
        "{after} s; a check that succeeds is repeated after 20 s"
    );
    stop.cancel();
    run.await.unwrap().unwrap();
}
