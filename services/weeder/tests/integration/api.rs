//! The gRPC API as clients see it, and the command line.

use std::collections::BTreeSet;

use tonic::Code;
use tonic_types::StatusExt as _;
use watchdog_proto::weeder::v1 as pb;
use watchdog_test_support::in_process::{self, eventually};

use crate::seed::Seed;

async fn twelve_weeders(seed: &Seed) {
    for i in 0..6 {
        let namespace = format!("shoot--{i}");
        seed.namespace(&namespace);
        seed.recover(&namespace, "etcd");
        seed.recover(&namespace, "kube-apiserver");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_service_is_found_by_its_name_and_all_are_counted() {
    let seed = Seed::new().await;
    twelve_weeders(&seed).await;
    seed.service("shoot--0", "etcd", false);
    let weeder = seed.ready().await;
    let mut client = weeder.client.clone();
    let get = |namespace: &str, service: &str| pb::GetEndpointReadinessRequest {
        key: Some(pb::ServiceKey {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
        }),
    };
    for (namespace, wanted) in [
        ("shoot--0", pb::Readiness::NotReady),
        ("shoot--1", pb::Readiness::Ready),
    ] {
        let request = get(namespace, "etcd");
        let answer = client.get_endpoint_readiness(request.clone()).await.unwrap();
        let readiness = answer.into_inner().readiness.unwrap();
        assert_eq!((readiness.readiness(), readiness.key), (wanted, request.key));
    }
    for (request, code, reason) in [
        (get("shoot--0", "no-such"), Code::NotFound, "SERVICE_NOT_FOUND"),
        (get("", "etcd"), Code::InvalidArgument, "INVALID_FIELD"),
        (
            get("shoot--0", "Not A Name"),
            Code::InvalidArgument,
            "INVALID_FIELD",
        ),
    ] {
        let status = client.get_endpoint_readiness(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert_eq!(status.get_details_error_info().unwrap().reason, reason);
    }
    let request = pb::GetSeedSummaryRequest::default();
    let answer = client.get_seed_summary(request).await.unwrap().into_inner();
    let summary = answer.summary.unwrap();
    let count = |readiness: pb::Readiness, services| pb::ReadinessCount {
        readiness: readiness.into(),
        services,
    };
    assert_eq!(
        summary.readiness,
        [count(pb::Readiness::Ready, 11), count(pb::Readiness::NotReady, 1)]
    );
    let weeders: u32 = summary.weeders.iter().map(|count| count.weeders).sum();
    assert_eq!(
        (summary.services, weeders, &*summary.leader),
        (12, 11, "weeder-0")
    );
    assert!(answer.completeness.unwrap().complete);
}

/// A leader that cannot list the slices knows of no recovery, which does not mean that there is none.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_yet_is_not_reported_as_absent() {
    let seed = Seed::new().await;
    seed.recover("shoot", "etcd");
    seed.api.deny(in_process::rule(&["list"], &["endpointslices"]));
    let weeder = seed.start("weeder-0").await;
    eventually("it leads", || seed.leader().is_some()).await;
    let mut client = weeder.client.clone();
    let key = Some(pb::ServiceKey {
        namespace: "shoot".to_owned(),
        service: "etcd".to_owned(),
    });
    let (of_weeder, of_service) = (
        client.get_weeder(pb::GetWeederRequest { key: key.clone() }).await,
        client
            .get_endpoint_readiness(pb::GetEndpointReadinessRequest { key })
            .await,
    );
    for status in [of_weeder.unwrap_err(), of_service.unwrap_err()] {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert_eq!(status.get_details_error_info().unwrap().reason, "NOT_REPORTED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_filtered() {
    let seed = Seed::new().await;
    twelve_weeders(&seed).await;
    let mut weeder = seed.ready().await;
    let request = pb::WatchWeedersRequest {
        service: "etcd".to_owned(),
        ..Default::default()
    };
    let mut weeding = weeder.client.watch_weeders(request).await.unwrap().into_inner();
    let request = pb::WatchEndpointReadinessRequest {
        namespace: "shoot--2".to_owned(),
        ..Default::default()
    };
    let mut readiness = weeder
        .client
        .watch_endpoint_readiness(request)
        .await
        .unwrap()
        .into_inner();

    let mut keys = BTreeSet::new();
    loop {
        use pb::watch_weeders_response::Event;
        match weeding.message().await.unwrap().unwrap().event.unwrap() {
            Event::Upsert(weeding) => assert!(keys.insert(weeding.key.unwrap().namespace)),
            Event::SnapshotComplete(complete) => {
                assert_eq!((complete.items, keys.len()), (6, 6));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let mut services = BTreeSet::new();
    loop {
        use pb::watch_endpoint_readiness_response::Event;
        match readiness.message().await.unwrap().unwrap().event.unwrap() {
            Event::Upsert(state) => {
                assert_eq!(state.readiness(), pb::Readiness::Ready);
                assert_eq!((state.ready_endpoints, state.endpoints), (1, 1));
                assert_eq!(state.observer, "weeder-0");
                services.insert(state.key.unwrap().service);
            }
            Event::SnapshotComplete(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(services.len(), 2);
    // The stream reports a deleted slice, but not one of another namespace.
    seed.service("shoot--1", "etcd", false);
    seed.delete(
        &watchdog_sandbox::resource::keys::ENDPOINT_SLICES,
        "shoot--2",
        "etcd-1",
    );
    let removed = readiness.message().await.unwrap().unwrap().event.unwrap();
    let key = pb::ServiceKey {
        namespace: "shoot--2".to_owned(),
        service: "etcd".to_owned(),
    };
    assert_eq!(
        removed,
        pb::watch_endpoint_readiness_response::Event::Removed(key)
    );
    weeder.stop().await;
}
