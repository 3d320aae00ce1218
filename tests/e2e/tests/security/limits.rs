//! Callers who take more than they may: streams, messages, time. Whatever they do, verdicts keep flowing
//! to a subscriber who behaves.

use futures::future::join_all;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use watchdog_proto::probe::v1 as pb;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_test_support::fault_proxy::{Behaviour, FaultProxy};
use watchdog_test_support::real::RealFixture;
use watchdog_test_support::wait::{self, BOUND};
use watchdog_test_support::watchdog::Service;

use crate::subscriber::{Subscriber, watch};

/// Of one caller without TLS, see `services/common/runtime/src/rpc_limits.rs`.
const MAX_STREAMS: usize = 256;
/// Without TLS, see `services/common/runtime/src/accept.rs`.
const MAX_STREAMS_PER_CONNECTION: usize = 128;

/// A lease-probe that tells something about every second, and a subscriber who behaves.
struct StreamFixture {
    service: Service,
    subscriber: Subscriber,
}

fn endpoint(address: &str) -> Endpoint {
    Channel::from_shared(format!("http://{address}")).unwrap()
}

// === impl StreamFixture ===

impl StreamFixture {
    async fn start(fixture: &RealFixture) -> Self {
        let shoot = fixture.shoot("one").unwrap();
        for name in ["two", "three", "four", "five"] {
            shoot.share(name).await.unwrap();
        }
        let command = crate::lease_probe(fixture, "limits", USER).await;
        // In the clear: what is behind TLS must hold without it.
        let command = command.arg("--insecure-plaintext");
        let service = fixture.setup.custom(command).await.unwrap();
        service.wait_ready().await.unwrap();
        let channel = endpoint(&service.grpc).connect_lazy();
        let scene = Self {
            subscriber: Subscriber::start(channel).await.unwrap(),
            service,
        };
        scene.verdicts_flow().await;
        scene
    }

    async fn verdicts_flow(&self) {
        // More than may lie in the buffers of the stream.
        self.subscriber.until_more(5).await;
    }

    async fn until_metric(&self, series: &str, fits: impl Fn(f64) -> bool) {
        wait::until(series, BOUND, || async {
            let value = self.service.metric(series).await?.unwrap_or_default();
            anyhow::ensure!(fits(value), "it is {value}");
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

pub(crate) const USER: &str = "limits";

const SUBSCRIBERS: &str = "watchdog_stream_subscribers{rpc=\"WatchVerdicts\"}";

pub(crate) async fn streams_messages_and_readers(fixture: &RealFixture) {
    let scene = StreamFixture::start(fixture).await;
    more_streams_and_larger_messages_than_are_allowed(&scene).await;
    who_has_vanished_is_let_go_and_who_does_not_read_disturbs_nobody(&scene).await;
}

async fn more_streams_and_larger_messages_than_are_allowed(scene: &StreamFixture) {
    let open = async || {
        let channel = endpoint(&scene.service.grpc).connect_lazy();
        join_all((0..MAX_STREAMS_PER_CONNECTION).map(|_| watch(channel.clone()))).await
    };
    let connections = MAX_STREAMS / MAX_STREAMS_PER_CONNECTION + 1;
    let opened = join_all((0..connections).map(|_| open())).await;
    let (streams, refused): (Vec<_>, Vec<_>) = opened.into_iter().flatten().partition(Result::is_ok);
    // The one of who behaves counts too.
    assert_eq!(streams.len(), MAX_STREAMS - 1);
    for status in refused.into_iter().filter_map(Result::err) {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(
            status
                .message()
                .contains("you already have 256 calls and streams"),
            "{}",
            status.message()
        );
    }
    scene.verdicts_flow().await;
    drop(streams);
    scene.until_metric(SUBSCRIBERS, |open| open == 1.0).await;

    let mut client = LeaseProbeServiceClient::new(endpoint(&scene.service.grpc).connect_lazy());
    let huge = pb::WatchVerdictsRequest {
        shoots: vec!["x".repeat(60); 100_000],
        ..Default::default()
    };
    let status = client.watch_verdicts(huge).await.unwrap_err();
    assert!(
        matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted),
        "{status:?}"
    );
    let many = pb::WatchVerdictsRequest {
        shoots: vec!["x".into(); 1_001],
        ..Default::default()
    };
    let status = client.watch_verdicts(many).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let mut heavy = Request::new(pb::ListVerdictsRequest::default());
    let value: MetadataValue<_> = "x".repeat(64 * 1024).parse().unwrap();
    heavy.metadata_mut().insert("x-heavy", value);
    assert!(client.list_verdicts(heavy).await.is_err(), "headers have a limit");
    // That cost it its connection; it may come again.
    wait::until("it is served again", BOUND, || async {
        let request = pb::ListVerdictsRequest::default();
        Ok(Some(client.clone().list_verdicts(request).await?))
    })
    .await
    .unwrap();
    scene.verdicts_flow().await;
}

async fn who_has_vanished_is_let_go_and_who_does_not_read_disturbs_nobody(scene: &StreamFixture) {
    // No room for more than a message or two on the way: then it depends on the reader.
    let narrow = endpoint(&scene.service.grpc)
        .initial_stream_window_size(1_024)
        .initial_connection_window_size(1_024);
    let mut slow = Vec::new();
    for _ in 0..10 {
        slow.push(watch(narrow.connect_lazy()).await.unwrap());
    }
    let proxy = FaultProxy::start_tcp(scene.service.grpc.parse().unwrap())
        .await
        .unwrap();
    let through = endpoint(&proxy.address().to_string());
    let _vanished = watch(through.connect_lazy()).await.unwrap();
    scene.until_metric(SUBSCRIBERS, |open| open == 12.0).await;
    proxy.set(Behaviour::Silent);
    scene.until_metric(SUBSCRIBERS, |open| open == 11.0).await;
    scene.verdicts_flow().await;
    // Who comes back to read is still served.
    let mut first = slow.swap_remove(0);
    let message = tokio::time::timeout(BOUND, first.message()).await.unwrap();
    assert!(message.unwrap().is_some());
    drop((first, slow));
    scene.until_metric(SUBSCRIBERS, |open| open == 1.0).await;
    scene.verdicts_flow().await;
}
