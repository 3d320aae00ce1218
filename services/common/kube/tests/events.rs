//! Kubernetes Events as they arrive at an API server.

#![cfg(test)]

use k8s_openapi::api::core::v1::ObjectReference;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use watchdog_kube::events::{EventSink, Notice, recorder};
use watchdog_runtime::readiness::Readiness;
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiServer, Fault, FaultAction};
use watchdog_test_support::in_process::{self, eventually};
use watchdog_test_support::sandboxed::client;
use watchdog_test_support::wait::{self, BOUND};

/// An API server, a sink, and the task that publishes there what the sink takes.
async fn start(stop: CancellationToken) -> (ApiServer, EventSink, impl Future<Output = anyhow::Result<()>>) {
    start_beside(TaskTracker::new(), stop).await
}

/// As [`start`], beside something that may be urgent.
async fn start_beside(
    urgent: TaskTracker,
    stop: CancellationToken,
) -> (ApiServer, EventSink, impl Future<Output = anyhow::Result<()>>) {
    let api = in_process::api_server(&["shoot--a"]).await.unwrap();
    let client = client(&api.kubeconfig("coordinator")).await.unwrap();
    let readiness = Readiness::default();
    let (sink, publish) = recorder(client, "coordinator", "coordinator-0", urgent, readiness, stop);
    (api, sink, publish)
}

fn notice(note: &str) -> Notice {
    Notice {
        about: ObjectReference {
            api_version: Some("apps/v1".into()),
            kind: Some("Deployment".into()),
            name: Some("kcm".into()),
            namespace: Some("shoot--a".into()),
            ..ObjectReference::default()
        },
        warning: true,
        reason: "ScaleDownFailed",
        action: "ScaleDown",
        note: note.to_owned(),
    }
}

/// Notes of the Events in the order of their names, which are made of the time, and the count of each.
fn published(api: &ApiServer) -> Vec<(String, i64)> {
    let mut events = api.store().all(&keys::EVENTS, Some("shoot--a"));
    events.sort_by_key(|event| event.name().to_owned());
    let published = events.iter().map(|event| {
        (
            event.text("/note").to_owned(),
            event.number("/series/count").max(1),
        )
    });
    published.collect()
}

#[tokio::test]
async fn another_note_is_another_event_and_the_same_one_a_series() {
    let (api, sink, publish) = start(CancellationToken::new()).await;
    for note in ["429", "a Pod hangs", "429", "429"] {
        sink.publish(notice(note));
    }
    drop(sink);
    tokio::time::timeout(BOUND, publish).await.unwrap().unwrap();
    assert_eq!(
        published(&api),
        [("429".to_owned(), 3), ("a Pod hangs".to_owned(), 1)]
    );
}

#[tokio::test]
async fn an_event_that_is_gone_is_published_anew() {
    let (api, sink, publish) = start(CancellationToken::new()).await;
    let publish = tokio::spawn(publish);
    sink.publish(notice("429"));
    eventually("it is published", || !published(&api).is_empty()).await;
    let events = api.store().all(&keys::EVENTS, Some("shoot--a"));
    in_process::delete(&api, &keys::EVENTS, "shoot--a", events[0].name()).unwrap();
    sink.publish(notice("429"));
    drop(sink);
    tokio::time::timeout(BOUND, publish)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(published(&api), [("429".to_owned(), 1)]);
}

/// A recovery of a whole seed makes more Events than wait.
#[tokio::test]
async fn a_warning_is_not_lost_behind_thousands_of_other_events() {
    let (api, sink, publish) = start(CancellationToken::new()).await;
    for number in 0..10_000 {
        let ordinary = Notice {
            warning: false,
            ..notice(&number.to_string())
        };
        sink.publish(ordinary);
    }
    sink.publish(notice("look at this"));
    let publish = tokio::spawn(publish);
    let first = wait::until("an Event is published", BOUND, || async {
        Ok(published(&api).into_iter().next())
    });
    assert_eq!(first.await.unwrap().0, "look at this");
    publish.abort();
}

/// In an incident of many shoots the API server is needed for the writes that scale.
#[tokio::test]
async fn ordinary_events_wait_while_writes_are_waiting_and_warnings_do_not() {
    let urgent = TaskTracker::new();
    let busy = urgent.token();
    let (api, sink, publish) = start_beside(urgent, CancellationToken::new()).await;
    let publish = tokio::spawn(publish);
    let ordinary = Notice {
        warning: false,
        ..notice("scaled to 0")
    };
    sink.publish(ordinary);
    sink.publish(notice("look at this"));
    sink.publish(notice("and at this"));
    eventually("the warnings are published", || published(&api).len() == 2).await;
    let notes: Vec<_> = published(&api).into_iter().map(|(note, _)| note).collect();
    assert_eq!(notes, ["look at this", "and at this"]);
    drop(busy);
    eventually("the other one is published", || published(&api).len() == 3).await;
    drop(sink);
    publish.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_waits_when_the_process_stops_is_published() {
    let stop = CancellationToken::new();
    let (api, sink, publish) = start(stop.clone()).await;
    stop.cancel();
    sink.publish(notice("one"));
    let publish = tokio::spawn(publish);
    // Requests end after the process began to stop.
    sink.publish(notice("two"));
    drop(sink);
    tokio::time::timeout(BOUND, publish)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(published(&api), [("one".to_owned(), 1), ("two".to_owned(), 1)]);
}

#[tokio::test]
async fn a_server_that_does_not_answer_does_not_hold_up_the_end_and_what_is_lost_is_counted() {
    let metrics = PrometheusBuilder::new().build_recorder();
    // The runtime of this test has one thread.
    let _recording = metrics::set_default_local_recorder(&metrics);
    watchdog_kube::metrics::register();
    let text = metrics.handle().render();
    let line = "watchdog_kubernetes_events_total{result=\"dropped\"} 0";
    assert!(
        text.contains(line),
        "it is shown before there is an Event: {text}"
    );
    let stop = CancellationToken::new();
    let (api, sink, publish) = start(stop.clone()).await;
    api.inject(Fault::always(FaultAction::Hang).verb("create"));
    stop.cancel();
    for note in ["one", "two", "three"] {
        sink.publish(notice(note));
    }
    tokio::time::timeout(BOUND, publish).await.unwrap().unwrap();
    sink.publish(notice("too late"));
    let text = metrics.handle().render();
    let line = "watchdog_kubernetes_events_total{result=\"dropped\"} 4";
    assert!(text.contains(line), "{text}");
}

/// One at a time they would take eight times as long as the drain waits for them.
#[tokio::test]
async fn many_events_that_wait_when_the_process_stops_are_published() {
    const WAITING: usize = 100;
    let stop = CancellationToken::new();
    let (api, sink, publish) = start(stop.clone()).await;
    api.inject(Fault::always(FaultAction::Delay { millis: 400 }).verb("create"));
    for number in 0..WAITING {
        sink.publish(notice(&number.to_string()));
    }
    drop(sink);
    stop.cancel();
    tokio::time::timeout(BOUND, publish).await.unwrap().unwrap();
    assert_eq!(published(&api).len(), WAITING);
}
