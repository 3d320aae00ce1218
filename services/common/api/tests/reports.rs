//! Objects and files of the shapes in public bug reports, each with the value that is right.

#![cfg(test)]

use std::time::Duration;

use watchdog_api::cluster::Cluster;
use watchdog_api::config::UnknownFields;
use watchdog_api::eligibility::{ShootSettings, SkipReason, may_continue, may_start};
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::{Item, ItemList};
use watchdog_api::machine::MachineItem;
use watchdog_api::node::NodeItem;
use watchdog_api::{prober, weeder};

fn read(file: &str) -> Vec<u8> {
    std::fs::read(format!(
        "{}/tests/fixtures/reports/{file}",
        env!("CARGO_MANIFEST_DIR")
    ))
    .unwrap()
}

fn cluster(name: &str) -> Cluster {
    serde_json::from_slice(&read(&format!("clusters/{name}.json"))).unwrap()
}

#[test]
fn skipped_clusters_have_the_right_reason() {
    for (name, start, runs_on) in [
        ("workerless", SkipReason::NoWorkers, false),
        ("workerless-empty-list", SkipReason::NoWorkers, false),
        ("old-garden-sapcloud-io", SkipReason::NoWorkers, false),
        ("self-hosted", SkipReason::SelfHosted, false),
        ("unmanaged-infra", SkipReason::SelfHosted, false),
        ("no-status", SkipReason::NotReconciled, true),
        ("status-null", SkipReason::NotReconciled, true),
        ("create-failed", SkipReason::NotReconciled, true),
        ("restore-processing", SkipReason::NotReconciled, true),
        ("waking-up", SkipReason::WakingUp, true),
        ("migrate-succeeded", SkipReason::Migrating, false),
        ("hibernating-held-down", SkipReason::Hibernating, false),
        ("deleting", SkipReason::Deleting, false),
    ] {
        let cluster = cluster(name);
        assert_eq!(may_start(&cluster), Err(start), "{name}");
        assert_eq!(may_continue(&cluster).is_ok(), runs_on, "{name}");
    }
    let absent = may_start(&cluster("spec-shoot-null")).unwrap_err();
    assert!(matches!(absent, SkipReason::Malformed(_)), "{absent}");
}

#[test]
fn probed_clusters_have_the_right_settings() {
    let settings = |name| may_start(&cluster(name)).unwrap_or_else(|reason| panic!("{name}: {reason}"));
    for name in [
        "hibernation-schedule-only",
        "hibernation-enabled-null",
        "kcm-null",
        "in-place-update-pool",
        "ipv6",
        "shoot-as-unversioned-go",
    ] {
        assert_eq!(settings(name), ShootSettings::default(), "{name}");
    }
    for (name, seconds) in [
        ("grace-2m0s", 120),
        ("grace-40s-podeviction", 40),
        ("grace-10s", 10),
    ] {
        let grace = settings(name).node_monitor_grace;
        assert_eq!(grace, Some(Duration::from_secs(seconds)), "{name}");
    }
    let many = settings("many-pools-conditions");
    assert!(!many.unhealthy_conditions.is_empty() && many.unhealthy_conditions.len() < 40);
    assert!(many.is_unhealthy_condition(Some("pool-of-default-conditions"), "DiskPressure"));
}

#[test]
fn a_lease_that_cannot_be_used_hides_no_other() {
    let bytes = read("leases/odd-times.json");
    let list = LeaseItem::page::<500>(&bytes).unwrap();
    let mut with_time = 0;
    let mut malformed = Vec::new();
    for item in &list.items {
        match item {
            Item::Ok(lease) => with_time += u32::from(lease.renew_time.is_some()),
            Item::Malformed { name, .. } => malformed.push(name.clone().unwrap()),
        }
    }
    assert_eq!(malformed, ["not-a-time", "number"]);
    assert_eq!((list.items.len(), with_time), (11, 7), "two lack the time");

    let bytes = read("leases/odd-fields.json");
    let list = LeaseItem::page::<500>(&bytes).unwrap();
    let nameless: Vec<_> = list.items.iter().filter(|item| item.ok().is_none()).collect();
    assert_eq!((list.items.len(), nameless.len()), (11, 1), "{nameless:?}");
}

#[test]
fn an_empty_list_is_one_and_a_refusal_is_none() {
    for file in ["leases/empty.json", "leases/items-null.json"] {
        assert!(
            LeaseItem::page::<500>(&read(file)).unwrap().items.is_empty(),
            "{file}"
        );
    }
    assert!(LeaseItem::page::<500>(&read("leases/namespace-gone.json")).is_err());
    for file in ["leases/six.json", "leases/old-and-quarter-lost.json"] {
        let bytes = read(file);
        let list = LeaseItem::page::<500>(&bytes).unwrap();
        assert!(
            list.items
                .iter()
                .all(|item| item.ok().is_some_and(|lease| lease.renew_time.is_some()))
        );
        assert_eq!(list.items.len(), 6, "{file}");
    }
}

#[test]
fn nodes_and_machines_are_read_as_they_are() {
    let nodes = |name: &str| {
        let bytes = read(&format!("nodes/{name}.json"));
        let list = ItemList::<NodeItem>::from_slice(&bytes).unwrap();
        list.items
            .iter()
            .map(|item| item.ok().unwrap().clone())
            .collect::<Vec<_>>()
    };
    assert!(nodes("none").is_empty());
    assert_eq!(nodes("ccm-deleted-five").len(), 1);
    assert!(
        nodes("no-pool-label")
            .iter()
            .all(|node| node.pool.is_none() && node.zone.is_none())
    );
    assert!(nodes("six").iter().all(|node| node.pool.as_deref() == Some("a")));
    let zone = |name: &str| {
        let of = nodes("one-zone-of-three");
        of.iter()
            .filter(|node| node.zone.as_deref() == Some(name))
            .count()
    };
    assert_eq!(["z-1", "z-2", "z-3"].map(zone), [2, 2, 2]);
    let sticky = nodes("readonly-filesystem-sticks");
    let settings = ShootSettings::default();
    let unhealthy = |node: &&NodeItem| {
        let pool = node.pool.as_deref();
        node.true_conditions()
            .any(|condition| settings.is_unhealthy_condition(pool, condition))
    };
    assert_eq!(sticky.iter().filter(unhealthy).count(), 5);

    let machines = |name: &str| {
        let bytes = read(&format!("machines/{name}.json"));
        let list = ItemList::<MachineItem>::from_slice(&bytes).unwrap();
        list.items
            .iter()
            .map(|item| item.ok().unwrap().node.clone())
            .collect::<Vec<_>>()
    };
    assert!(machines("none").is_empty());
    let labels = |name: &str| machines(name).into_iter().flatten().count();
    assert_eq!((labels("six"), labels("pending-without-node-label")), (6, 2));
    assert_eq!(machines("pending-without-node-label").len(), 6);
}

/// The errors of a file; none if it is good.
fn errors(file: &str) -> Vec<String> {
    let bytes = read(&format!("configs/{file}.yaml"));
    let outcome = match file.starts_with("prober") {
        true => prober::parse(&bytes, UnknownFields::Refused).map(drop),
        false => weeder::parse(&bytes, UnknownFields::Refused).map(drop),
    };
    let shown = |errors: watchdog_api::config::ConfigErrors| {
        errors.errors().iter().map(ToString::to_string).collect()
    };
    outcome.err().map(shown).unwrap_or_default()
}

#[test]
fn configurations_of_older_versions_are_accepted_or_refused_with_the_line_to_change() {
    for file in ["prober-self-hosted", "prober-v0.9-two-endpoints"] {
        assert_eq!(errors(file), Vec::<String>::new(), "{file}");
    }
    for (file, expected) in [
        (
            "prober-alpha-backoff-duration",
            "7:1: backOffDuration: unknown field",
        ),
        ("prober-gardener-null", "dependentResourceInfos"),
        (
            "prober-v0-scale-ref",
            "4:1: probes: unknown field: this is a file for dependency-watchdog 0.x",
        ),
        ("weeder-gardener-null", "servicesAndDependantSelectors"),
        (
            "weeder-v0-dependant-pods",
            "3:1: services: unknown field: this is a file for dependency-watchdog 0.x",
        ),
    ] {
        let found = errors(file);
        assert!(
            found.iter().any(|error| error.contains(expected)),
            "{file}: {found:?}"
        );
    }
}
