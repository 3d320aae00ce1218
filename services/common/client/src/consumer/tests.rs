use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use hyper_util::rt::TokioIo;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request};
use watchdog_proto::probe::v1::lease_probe_service_server::{LeaseProbeService, LeaseProbeServiceServer};

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt as _};

use super::*;
use crate::message::{COMPLETE, Event, Message, Position};

type WatchStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How long the double takes for its answer about the shoot `slow`.
const ANSWER_DELAY: Duration = Duration::from_secs(3);

/// A lease-probe whose answers depend on the name of the shoot, and each of whose streams ends after its snapshot.
#[derive(Clone, Default)]
struct LeaseProbeDouble {
    streams: Arc<AtomicUsize>,
}

fn verdict(shoot: &str) -> probe::Verdict {
    probe::Verdict {
        shoot: shoot.to_owned(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl LeaseProbeService for LeaseProbeDouble {
    type WatchVerdictsStream = WatchStream<probe::WatchVerdictsResponse>;

    async fn get_verdict(
        &self,
        request: Request<probe::GetVerdictRequest>,
    ) -> Result<Response<probe::GetVerdictResponse>, Status> {
        match request.into_inner().shoot.as_str() {
            "slow" => tokio::time::sleep(ANSWER_DELAY).await,
            "silent" => std::future::pending().await,
            shoot => return Err(Status::not_found(format!("no shoot {shoot}"))),
        }
        Ok(Response::new(probe::GetVerdictResponse {
            verdict: Some(verdict("slow")),
            ..Default::default()
        }))
    }

    async fn list_verdicts(
        &self,
        _: Request<probe::ListVerdictsRequest>,
    ) -> Result<Response<probe::ListVerdictsResponse>, Status> {
        Err(Status::unimplemented("nobody lists"))
    }

    async fn get_seed_summary(
        &self,
        _: Request<probe::GetSeedSummaryRequest>,
    ) -> Result<Response<probe::GetSeedSummaryResponse>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn list_replicas(
        &self,
        _: Request<probe::ListReplicasRequest>,
    ) -> Result<Response<probe::ListReplicasResponse>, Status> {
        Err(Status::unimplemented("nobody lists"))
    }

    async fn watch_verdicts(
        &self,
        request: Request<probe::WatchVerdictsRequest>,
    ) -> Result<Response<Self::WatchVerdictsStream>, Status> {
        let number = self.streams.fetch_add(1, SeqCst);
        let message = |event| {
            let epoch = format!("epoch {number}");
            let position = Position {
                epoch,
                ..Position::default()
            };
            Ok(probe::WatchVerdictsResponse::encode(Message { position, event }))
        };
        let items = request.into_inner().shoots;
        let complete = Event::SnapshotComplete {
            items: items.len() as u64,
            completeness: COMPLETE,
        };
        let mut messages: Vec<_> = items
            .iter()
            .map(|shoot| message(Event::Upsert(shoot.clone(), verdict(shoot))))
            .collect();
        messages.push(message(complete));
        messages.push(Err(Status::unavailable("the server drains")));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}

/// A client of the double, over a connection in memory.
fn client() -> LeaseProbe {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accepted = tokio_stream::once(Ok::<_, std::io::Error>(far)).chain(tokio_stream::pending());
    let server = Server::builder().add_service(LeaseProbeServiceServer::new(LeaseProbeDouble::default()));
    tokio::spawn(server.serve_with_incoming(accepted));
    let mut near = Some(near);
    let connector = tower::service_fn(move |_| {
        let near = near.take().map(TokioIo::new);
        std::future::ready(near.ok_or_else(|| std::io::Error::other("a second connection")))
    });
    LeaseProbe::new(Endpoint::from_static("http://double").connect_with_connector_lazy(connector))
}

async fn get(shoot: &str) -> (Duration, Result<Received<probe::GetVerdictResponse>, Status>) {
    let began = Instant::now();
    let request = probe::GetVerdictRequest {
        shoot: shoot.to_owned(),
    };
    let answer = client().get_verdict(request).await;
    if let Ok(received) = &answer {
        assert_eq!((received.sent_at, received.set_at), (began, began));
    }
    (began.elapsed(), answer)
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_as_sent_when_its_call_began() {
    let (took, answer) = get("slow").await;
    assert_eq!(answer.unwrap().value.verdict, Some(verdict("slow")));
    assert!(took >= ANSWER_DELAY, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_or_not_answered_fails_with_a_status() {
    let (_, refused) = get("unknown").await;
    let refused = refused.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::NotFound, "no shoot unknown")
    );
    let (took, silent) = get("silent").await;
    assert_eq!(silent.unwrap_err().code(), Code::DeadlineExceeded);
    // The clock is paused.
    assert!(took >= CALL_TIMEOUT && took < 2 * CALL_TIMEOUT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_is_resumed_with_the_same_request_until_it_is_stopped() {
    let (stop, mut updates) = (CancellationToken::new(), Vec::new());
    let request = probe::WatchVerdictsRequest {
        shoots: vec!["a".to_owned(), "b".to_owned()],
        ..Default::default()
    };
    let on_update = |update: Update<String, probe::Verdict>| {
        updates.push(match update {
            Update::Snapshot(items, completeness) if completeness == COMPLETE => {
                items.into_keys().collect::<Vec<_>>().join(" ")
            }
            Update::Lost(failure) => failure.to_string(),
            other => panic!("{other:?}"),
        });
        if updates.len() == 4 {
            stop.cancel();
        }
    };
    let client = client();
    let followed = client.follow(request, &stop, on_update);
    tokio::time::timeout(Duration::from_secs(60), followed)
        .await
        .unwrap();
    let lost = "The service is currently unavailable: the server drains";
    assert_eq!(updates, ["a b", lost, "a b", lost]);
}
