//! The service is that of gRPC's health: one call, and one stream.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use super::super::LeadershipSetter;
use super::*;

const BOUND: Duration = Duration::from_secs(30);

/// A replica of a program, which says that it serves the service of its own name.
struct Replica {
    name: &'static str,
    address: SocketAddr,
    setter: LeadershipSetter,
    draining: CancellationToken,
    client: HealthClient<Channel>,
    /// Ends its server with all connections.
    server: Option<Runtime>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }
}

impl Replica {
    async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (setter, leadership) = Leadership::channel(name, Some(address.to_string().into()));
        let dialer = Dialer {
            tls: None,
            server_name: "localhost".to_owned(),
        };
        let channel = dialer.channel(&address.to_string()).unwrap();
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status(name, ServingStatus::Serving).await;
        let server = Runtime::new().unwrap();
        let draining = CancellationToken::new();
        let forward = ForwardToLeader::new(health, leadership, dialer, draining.clone());
        server.spawn(async {
            let listener = TcpListenerStream::new(listener);
            Server::builder()
                .add_service(forward)
                .serve_with_incoming(listener)
                .await
        });
        Self {
            name,
            address,
            setter,
            draining,
            client: HealthClient::new(channel),
            server: Some(server),
        }
    }

    fn as_leader(&self) -> Option<Leader> {
        Some(Leader {
            name: self.name.into(),
            address: Some(self.address.to_string().into()),
        })
    }

    fn lead(&self) {
        self.setter.lead(Some(tokio::time::Instant::now() + BOUND));
    }

    /// Asks whether this service is served.
    async fn check(&self, service: &str) -> Result<(), Status> {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = timeout(BOUND, self.client.clone().check(request)).await.unwrap();
        answer.map(drop)
    }

    /// Watches whether this service is served.
    async fn watch(&self, service: &str) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let mut stream = self.client.clone().watch(request).await.unwrap().into_inner();
        let first = timeout(BOUND, stream.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(
            first.status,
            tonic_health::pb::health_check_response::ServingStatus::Serving as i32
        );
        stream
    }
}

async fn end(mut stream: tonic::Streaming<tonic_health::pb::HealthCheckResponse>) -> Status {
    timeout(BOUND, stream.message()).await.unwrap().unwrap_err()
}

#[tokio::test]
async fn a_standby_answers_with_the_leaders_answers_and_streams() {
    let (leader, standby) = (Replica::start("a").await, Replica::start("b").await);
    leader.lead();
    standby.setter.follow(leader.as_leader());
    for replica in [&leader, &standby] {
        replica.check("a").await.unwrap();
        let unknown = replica.check("b").await.unwrap_err();
        assert_eq!(
            unknown.code(),
            Code::NotFound,
            "an error of the leader: {unknown}"
        );
    }
    let streams = [leader.watch("a").await, standby.watch("a").await];
    leader.setter.follow(standby.as_leader());
    standby.lead();
    for stream in streams {
        let ended = end(stream).await;
        assert_eq!(ended.code(), Code::Unavailable, "{ended}");
        assert!(ended.message().contains("connect again"), "{ended}");
    }
    for replica in [&leader, &standby] {
        replica.check("b").await.unwrap();
    }
}

#[tokio::test]
async fn a_leader_that_must_pause_still_answers() {
    let leader = Replica::start("a").await;
    leader.lead();
    let stream = leader.watch("a").await;
    leader.setter.lead(None);
    leader.check("a").await.unwrap();
    leader.setter.follow(None);
    assert_eq!(end(stream).await.code(), Code::Unavailable);
}

#[tokio::test]
async fn without_a_leader_that_can_be_asked_a_standby_says_so() {
    let standby = Replica::start("b").await;
    let gone = Replica::start("a").await;
    let leader = gone.as_leader();
    drop(gone);
    let without_address = Leader {
        name: "dwd-0".into(),
        address: None,
    };
    let nonsense = Leader {
        name: "x".into(),
        address: Some("not an address".into()),
    };
    for (leader, why) in [
        (None, "there is no leader"),
        (Some(without_address), "ask the leader, dwd-0"),
        (leader, "the leader, a, does not answer"),
        (Some(nonsense), "the leader, x, does not answer"),
    ] {
        standby.setter.follow(leader);
        let refused = standby.check("b").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains(why), "{refused}");
        assert!(refused.get_details_retry_info().is_some(), "{refused}");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_frozen_leader_ends_when_another_one_leads() {
    let standby = Replica::start("b").await;
    let frozen = TcpListener::bind("127.0.0.1:0").await.unwrap();
    standby.setter.follow(Some(Leader {
        name: "a".into(),
        address: Some(frozen.local_addr().unwrap().to_string().into()),
    }));
    let next_leader = async {
        // The call has reached the one that does not answer.
        let _connection = frozen.accept().await.unwrap();
        standby.setter.follow(standby.as_leader());
        std::future::pending::<()>().await
    };
    tokio::select! {
        ended = standby.check("b") => {
            let ended = ended.unwrap_err();
            assert_eq!(ended.code(), Code::Unavailable, "{ended}");
            assert!(ended.message().contains("another replica leads now"), "{ended}");
        }
        () = next_leader => {}
    }
}

/// Another replica answers at once, so the caller must not wait as long as for an election.
#[tokio::test]
async fn a_replica_that_drains_says_so_whether_it_leads_or_not() {
    let (leader, standby) = (Replica::start("a").await, Replica::start("b").await);
    leader.lead();
    standby.setter.follow(leader.as_leader());
    for replica in [&standby, &leader] {
        let stream = replica.watch("a").await;
        replica.draining.cancel();
        // The election ends, too.
        replica.setter.follow(None);
        for ended in [end(stream).await, replica.check("a").await.unwrap_err()] {
            assert_eq!(ended.code(), Code::Unavailable, "{ended}");
            let reason = ended.get_details_error_info().unwrap().reason;
            assert_eq!(reason, "DRAINING", "{ended}");
            let retry = ended.get_details_retry_info().unwrap().retry_delay;
            assert_eq!(retry, Some(Duration::from_secs(1)), "{ended}");
        }
    }
}

#[tokio::test]
async fn a_call_is_passed_on_once() {
    let (one, other) = (Replica::start("a").await, Replica::start("b").await);
    one.setter.follow(other.as_leader());
    other.setter.follow(one.as_leader());
    let refused = one.check("a").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused
            .message()
            .contains("mistook this standby for the leader a"),
        "{refused}"
    );
    // Also one that takes itself for a standby of itself: its predecessor had its name and address.
    one.setter.follow(one.as_leader());
    assert_eq!(one.check("a").await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_stream_of_a_leader_that_is_lost_ends_and_gives_its_place_back() {
    let (leader, standby) = (Replica::start("a").await, Replica::start("b").await);
    leader.lead();
    standby.setter.follow(leader.as_leader());
    let mut streams = Vec::new();
    for _ in 0..MAX_CALLS {
        streams.push(standby.watch("a").await);
    }
    let refused = standby.check("a").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    streams.pop();
    // The server learns later that a stream is gone.
    let again = async {
        while standby.check("a").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, again).await.unwrap();
    drop(leader);
    for stream in streams {
        let ended = end(stream).await;
        assert_eq!(ended.code(), Code::Unavailable, "{ended}");
        assert!(ended.message().contains("was lost"), "{ended}");
    }
}
