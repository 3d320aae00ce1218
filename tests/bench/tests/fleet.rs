//! The fleet as a client of Kubernetes sees it.

#![cfg(test)]

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;
use watchdog_bench::fleet::listener::FleetListener;
use watchdog_bench::fleet::seeding::ShootEndpoint;
use watchdog_bench::fleet::{Availability, Fleet};
use watchdog_test_support::{sandboxed, wait};

struct Served {
    fleet: Arc<Fleet>,
    endpoint: ShootEndpoint,
    _serving: AbortOnDropHandle<anyhow::Result<()>>,
}

fn serve(shoots: usize, nodes: usize) -> Served {
    let fleet = Arc::new(Fleet::new(shoots, nodes));
    let listener = FleetListener::bind().unwrap();
    let endpoint = listener.endpoint.clone();
    let serving = listener.serve(fleet.clone());
    Served {
        fleet,
        endpoint,
        _serving: AbortOnDropHandle::new(tokio::spawn(serving)),
    }
}

impl Served {
    async fn client(&self, shoot: usize) -> Client {
        let kubeconfig = self.endpoint.kubeconfig(shoot).unwrap();
        sandboxed::client(&kubeconfig).await.unwrap()
    }
}

#[tokio::test]
async fn leases_and_nodes_are_those_of_the_shoot_page_by_page() {
    let served = serve(300, 7);
    let client = served.client(299).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let mut names = Vec::new();
    let mut next = ListParams::default().limit(3);
    loop {
        let page = leases.list(&next).await.unwrap();
        for lease in &page.items {
            let owner = &lease.owner_references()[0];
            assert_eq!((owner.kind.as_str(), &owner.name), ("Node", &lease.name_any()));
            assert!(lease.spec.as_ref().unwrap().renew_time.is_some());
            names.push(lease.name_any());
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => next = ListParams::default().limit(3).continue_token(&token),
            None => break,
        }
    }
    let nodes: Api<Node> = Api::all(client);
    let listed = nodes.list(&ListParams::default()).await.unwrap();
    assert_eq!(
        names,
        listed.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    );
    assert_eq!(names.len(), 7);
    assert!(names[0].starts_with("shoot--bench--00299-"));
    let report = served.fleet.report();
    assert_eq!(
        (report.lease_lists, report.other_requests, report.node_lists),
        (1, 2, 1)
    );
    assert!(report.bytes_sent > 7 * 8_000);
}

/// Longer than any answer of the fleet takes.
const NO_ANSWER: Duration = Duration::from_millis(300);

/// For what must happen.
const BOUND: Duration = Duration::from_secs(30);

#[tokio::test]
async fn api_servers_that_hang_answer_when_the_outage_ends() {
    let served = serve(2, 3);
    let connected: Api<Node> = Api::all(served.client(0).await);
    let stranger: Api<Node> = Api::all(served.client(1).await);
    connected.list(&ListParams::default()).await.unwrap();

    served.fleet.begin_outage(Availability::Hang);
    let params = ListParams::default();
    let (on_open, on_new) = (connected.list(&params), stranger.list(&params));
    tokio::pin!(on_open, on_new);
    let early = async { tokio::join!(&mut on_open, &mut on_new) };
    assert!(tokio::time::timeout(NO_ANSWER, early).await.is_err());
    assert_eq!(served.fleet.report().node_lists, 1);

    served.fleet.recover(0, Duration::ZERO);
    let late = async { tokio::join!(on_open, on_new) };
    let (on_open, on_new) = tokio::time::timeout(BOUND, late).await.unwrap();
    assert_eq!(
        (on_open.unwrap().items.len(), on_new.unwrap().items.len()),
        (3, 3)
    );
    assert_eq!(served.fleet.report().connections_accepted, 2);
}

#[tokio::test]
async fn api_servers_that_are_gone_refuse_connections_until_they_are_back() {
    let served = serve(1, 3);
    let nodes: Api<Node> = Api::all(served.client(0).await);
    let params = ListParams::default();
    nodes.list(&params).await.unwrap();

    served.fleet.begin_outage(Availability::Refuse);
    let address = (Fleet::address(0), served.endpoint.port);
    wait::until_true("connections are refused", BOUND, || async {
        let refused = TcpStream::connect(address).await;
        Ok(refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
    })
    .await
    .unwrap();
    assert!(nodes.list(&params).await.is_err());

    served.fleet.recover(0, Duration::ZERO);
    wait::until_true("the same port answers again", BOUND, || async {
        Ok(nodes.list(&params).await?.items.len() == 3)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_nodes_of_lost_shoots_stay_silent_after_an_outage() {
    let fleet = Fleet::new(2, 5);
    let from = fleet.begin_outage(Availability::Hang);
    let until = fleet.recover(1, Duration::from_micros(1));
    let [lost, back] = [0, 1].map(|shoot| fleet.shoots()[shoot].report());
    assert!(lost.resumed.is_empty() && lost.renewed.iter().all(|at| *at <= from));
    assert_eq!(back.resumed, [until; 5]);
    assert_eq!(back.renewed, [until; 5]);
    let healed = fleet.recover(0, Duration::from_micros(1));
    let [lost, back] = [0, 1].map(|shoot| fleet.shoots()[shoot].report());
    assert_eq!((lost.resumed, back.resumed), (vec![healed; 5], vec![until; 5]));
}
