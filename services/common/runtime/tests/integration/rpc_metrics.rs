//! The metrics of RPCs, on both sides.

use http::Request;
use metrics_exporter_prometheus::PrometheusHandle;
use tonic::body::Body;
use tonic_health::pb::HealthCheckRequest;
use tower::ServiceExt as _;

use crate::server::{SERVER, Server, channel, recorded, value};
use crate::until;

/// Waits until both sides have counted one RPC of a method with this code.
async fn until_counted(metrics: &PrometheusHandle, method: &str, code: &str) {
    for side in ["server", "client"] {
        let series = format!(
            "watchdog_grpc_{side}_handling_seconds_count{{service=\"grpc.health.v1.Health\",method=\"{method}\",\
             code=\"{code}\"}}"
        );
        until(&series, async || value(metrics, &series) == 1).await;
    }
}

#[tokio::test]
async fn answers_are_counted_with_their_code() {
    let (metrics, _guard) = recorded();
    let server = Server::start(None).await;
    for (service, code) in [("", "OK"), ("no.such.Service", "NOT_FOUND")] {
        let service = service.to_owned();
        let _ = server.client(None).check(HealthCheckRequest { service }).await;
        until_counted(&metrics, "Check", code).await;
    }
}

#[tokio::test]
async fn a_stream_is_in_flight_until_its_reader_drops_it() {
    let (metrics, _guard) = recorded();
    let server = Server::start(None).await;
    let in_flight = || {
        ["server", "client"].map(|side| {
            let labels = "{service=\"grpc.health.v1.Health\",method=\"Watch\"}";
            value(&metrics, &format!("watchdog_grpc_{side}_in_flight{labels}"))
        })
    };
    let stream = server.client(None).watch(HealthCheckRequest::default()).await;
    let mut stream = stream.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    assert_eq!(in_flight(), [1, 1]);
    drop(stream);
    until_counted(&metrics, "Watch", "CANCELLED").await;
    assert_eq!(in_flight(), [0, 0]);
}

#[tokio::test]
async fn paths_that_the_server_does_not_have_share_one_series() {
    let (metrics, _guard) = recorded();
    let server = Server::start(None).await;
    for path in ["/a.B/C", "/d.E/F", "/x"] {
        let request = Request::post(path).body(Body::empty()).unwrap();
        channel(server.address, None, SERVER)
            .oneshot(request)
            .await
            .unwrap();
    }
    let series = "watchdog_grpc_server_handling_seconds_count{service=\"unknown\",method=\"unknown\",\
                  code=\"UNIMPLEMENTED\"}";
    until("they are counted", async || value(&metrics, series) == 3).await;
}
