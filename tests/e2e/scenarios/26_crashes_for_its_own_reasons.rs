//! A pod crashes for reasons of its own
//!
//! The pods that need the kube-apiserver are deleted once it is back. One of them continues to crash: it is deleted
//! once, and its successor is left alone, as an Event, a metric and the API report. A rolling restart of the weeder
//! deletes nothing.

use std::sync::Arc;

use anyhow::{Context, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use watchdog_proto::weeder::v1 as pb;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;

use crate::acceptance::control_plane::{API_SERVER, ControlPlane, ControlPlanes};
use crate::acceptance::fixture::Fixture;
use crate::acceptance::seed::Seed;
use watchdog_test_support::wait;
use watchdog_test_support::watchdog::Service;

const OWN: &str = "kube-controller-manager";

/// Deletions of the pod that crashes for its own reasons, and of the others.
const DELETIONS: (usize, usize) = (1, 2);

pub(super) async fn play(fixture: &Fixture) -> anyhow::Result<()> {
    // The weeder is restarted, so it must not be the one that all scenarios share.
    fixture.reserve(1).await?;
    let seed = fixture.second_seed().await?;
    let (control_planes, _following) = ControlPlanes::start(&seed).await?;
    let namespace = format!("shoot--{}--plane", fixture.name());
    let plane = control_planes.add(&namespace, 1).await?;
    plane.down(API_SERVER).await?;
    plane.breaks(OWN).await?;
    plane.up(API_SERVER).await?;

    let left = wait::until(
        "the successor is left alone",
        fixture.times().bound * 4,
        || async {
            let weeder = weeder_of(&seed, &seed.weeder.get(), &namespace).await?;
            Ok(weeder.left_alone.first().cloned())
        },
    )
    .await?;
    ensure!(
        (left.container.as_str(), left.exit_code) == ("main", Some(1))
            && left.reason() == pb::KeepReason::YoungerThanRecovery
            && left.controller.ends_with(OWN),
        "{left:?}"
    );
    let of_pods = "service=\"kube-apiserver\",container=\"main\",exit_code=\"1\",reason=\"Error\"";
    for (series, count) in [
        ("watchdog_weeder_useless_deletions_total", 1.0),
        (
            "watchdog_weeder_left_alone_total{reason=\"younger_than_recovery\"}",
            1.0,
        ),
        ("watchdog_weeder_deletions_total{result=\"deleted\"}", 3.0),
        (
            format!("watchdog_weeder_deleted_pods_total{{{of_pods}}}").as_str(),
            3.0,
        ),
    ] {
        let metric = seed.weeder.get().metric(series).await?;
        ensure!(metric == Some(count), "{series}: {metric:?}");
    }
    warned(fixture, &seed, &namespace).await?;
    ensure!(
        deletions(&plane).await == DELETIONS,
        "{:?}",
        plane.deletions().await
    );

    // As a Deployment does it: the new replica first.
    let old = seed.weeder.get();
    let command = old.command().clone().option("--identity", "weeder-1");
    let new = seed.setup.custom(command).await?;
    new.wait_ready().await?;
    old.process.stop(fixture.times().bound).await?;
    let leases = Api::<Lease>::namespaced(seed.client.clone(), "garden");
    wait::until_true("the new replica leads", fixture.times().bound, || async {
        let spec = leases.get("weeder-leader").await?.spec.unwrap_or_default();
        Ok(spec
            .holder_identity
            .is_some_and(|holder| holder.starts_with("weeder-1")))
    })
    .await?;
    wait::holds("nothing is weeded", fixture.observation_window(), || async {
        Ok(deletions(&plane).await == DELETIONS)
    })
    .await?;
    ensure!(plane.crashed().await == [OWN], "{:?}", plane.crashed().await);
    Ok(())
}

/// How often the pod was deleted that crashes for its own reasons, and how often others were.
async fn deletions(plane: &ControlPlane) -> (usize, usize) {
    let deleted = plane.deleted_components().await;
    let own = deleted.iter().filter(|component| **component == OWN).count();
    (own, deleted.len() - own)
}

async fn weeder_of(seed: &Arc<Seed>, weeder: &Service, namespace: &str) -> anyhow::Result<pb::Weeder> {
    let mut client = WeederServiceClient::new(seed.setup.channel(weeder)?);
    let request = pb::ListWeedersRequest {
        namespace: namespace.to_owned(),
        ..Default::default()
    };
    let weeders = client.list_weeders(request).await?.into_inner().weeders;
    let of_service = |weeder: &pb::Weeder| weeder.key.as_ref().is_some_and(|key| key.service == API_SERVER);
    weeders.into_iter().find(of_service).context("no weeder")
}

async fn warned(fixture: &Fixture, seed: &Seed, namespace: &str) -> anyhow::Result<()> {
    let events = Api::<Event>::namespaced(seed.client.clone(), namespace);
    wait::until_true("an Event warns", fixture.times().bound, || async {
        let listed = events.list(&Default::default()).await?;
        Ok(listed.items.iter().any(|event| {
            event.type_.as_deref() == Some("Warning")
                && event.reason.as_deref() == Some("CrashesAlthoughServiceIsReady")
                && event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(OWN)
        }))
    })
    .await
}
