//! The fleet as a client of Kubernetes sees it.

#![cfg(test)]

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use tokio_util::task::AbortOnDropHandle;
use watchdog_bench::fleet::Fleet;
use watchdog_bench::fleet::listener::Listener;
use watchdog_bench::fleet::seeding::Reached;
use watchdog_e2e::scratch::Scratch;

struct Served {
    fleet: Arc<Fleet>,
    reached: Reached,
    _serving: AbortOnDropHandle<()>,
}

fn serve(shoots: usize, nodes: usize) -> Served {
    let scratch = Scratch::new("fleet-test").unwrap();
    let fleet = Arc::new(Fleet::new(shoots, nodes));
    let listener = Listener::bind(&scratch, 0).unwrap();
    let reached = Reached {
        host: None,
        port: listener.port,
        ca_pem: listener.ca_pem.clone(),
    };
    let serving = listener.serve(fleet.clone(), true);
    Served {
        fleet,
        reached,
        _serving: AbortOnDropHandle::new(tokio::spawn(serving)),
    }
}

impl Served {
    async fn client(&self, shoot: usize, token: &str) -> Client {
        let text = self.reached.kubeconfig(shoot, token).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    }
}

#[tokio::test]
async fn leases_and_nodes_are_those_of_the_shoot_page_by_page() {
    let served = serve(300, 7);
    let client = served.client(299, &served.fleet.token).await;
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
    assert_eq!(nodes.get(&names[6]).await.unwrap().name_any(), names[6]);
    let report = served.fleet.report();
    assert_eq!(
        (report.lease_lists, report.further_pages, report.node_lists),
        (1, 2, 1)
    );
    assert!(report.bytes_sent > 7 * 8_000);
}

#[tokio::test]
async fn a_foreign_token_and_a_write_are_refused() {
    let served = serve(1, 1);
    let code = |error: kube::Error| match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    };
    let stranger: Api<Node> = Api::all(served.client(0, "stranger").await);
    assert_eq!(
        code(stranger.list(&ListParams::default()).await.unwrap_err()),
        401
    );
    let known: Api<Node> = Api::all(served.client(0, &served.fleet.token).await);
    let refused = known.create(&PostParams::default(), &Node::default()).await;
    assert_eq!(code(refused.unwrap_err()), 403);
    assert_eq!(code(known.get("nobody").await.unwrap_err()), 404);
}
