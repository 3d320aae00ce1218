//! The contract of the decoders of foreign bytes. Each function takes any bytes and panics when its decoder breaks a
//! promise. `fuzz/run` drives them with libFuzzer, guided by coverage; the tests here drive them with the seeds and
//! with what was found once.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a target that finds something ends by a panic"
)]

mod objects;
mod requests;

use objects::{annotations, endpoints, pods};
use requests::{page_token, requests};

use lease_probe::cluster::LARGEST_PAGE;
use secrecy::ExposeSecret;
use serde::Deserialize;
use watchdog_api::cluster::Cluster;
use watchdog_api::eligibility::{ShootSettings, SkipReason, may_continue, may_start};
use watchdog_api::kubeconfig::{self, SeedUser};
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::{Item, ItemList};
use watchdog_api::node::NodeItem;

/// A function that drives a decoder.
pub type FuzzTarget = fn(&[u8]);

/// All of them, by the names of their folders in `seeds`.
pub const TARGETS: [(&str, FuzzTarget); 9] = [
    ("kubeconfig", kubeconfig),
    ("cluster", cluster),
    ("leases", leases),
    ("nodes", nodes),
    ("endpoints", endpoints),
    ("pods", pods),
    ("annotations", annotations),
    ("requests", requests),
    ("page_token", page_token),
];

/// The stand-in for a secret in the seeds; a fuzzer moves it, but hardly ever changes it.
const SECRETS: [&str; 2] = ["hunter2-hunter2", "aHVudGVyMi1odW50ZXIy"];

/// A reason is a sentence for people, not a copy of the input.
const LONGEST_REASON: usize = 600;

/// A kubeconfig, of a shoot and of the seed: it is refused with a field and a reason, or tells how to reach a server, a
/// shoot's by TLS; and neither the error nor the debug output of the credentials shows a secret. What is accepted for
/// the seed, kube takes without ending the process: its address has a scheme, and its credentials are for a header.
fn kubeconfig(data: &[u8]) {
    let shoot = kubeconfig::parse(data).map(|access| {
        assert_eq!(access.server.scheme_str(), Some("https"));
        assert!(access.server.authority().is_some());
        format!("{:?} {:?}", access.token, access.client_certificate)
    });
    // Every file that it names has the same content.
    let seed = kubeconfig::of_seed(&["seed".into()], None, &|_| Ok(data.to_vec())).map(|read| {
        assert!(read.server.scheme().is_some() && read.server.authority().is_some());
        if let SeedUser::Fixed(Some(authorization)) = &read.user {
            let (_, credentials) = authorization.expose_secret().split_once(' ').expect("a scheme");
            assert!(!credentials.is_empty() && credentials.bytes().all(|byte| byte.is_ascii_graphic()));
        }
        String::new()
    });
    for read in [shoot, seed] {
        let shown = read.unwrap_or_else(|error| {
            assert!(!error.field.is_empty() && !error.reason.is_empty());
            assert!(error.reason.len() <= LONGEST_REASON, "{error}");
            format!("{error} {error:?}")
        });
        for secret in SECRETS {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

/// A Cluster with its Shoot: what may start may go on, with the same settings, and a deletion counts whatever else is
/// wrong.
fn cluster(data: &[u8]) {
    let Ok(cluster) = serde_json::from_slice::<Cluster>(data) else {
        return;
    };
    let continued = may_continue(&cluster);
    if cluster.metadata.deletion_timestamp.is_some() {
        assert_eq!(continued, Err(SkipReason::Deleting));
    }
    match may_start(&cluster) {
        Ok(settings) => {
            assert!(settings.node_monitor_grace.is_none_or(|grace| !grace.is_zero()));
            assert_eq!(continued, Ok(settings));
        }
        Err(reason) => {
            assert!(reason.to_string().len() <= LONGEST_REASON, "{reason}");
            if continued.is_ok() {
                assert!(matches!(reason, SkipReason::WakingUp | SkipReason::NotReconciled));
            }
        }
    }
}

/// A page of leases: one that is malformed is reported with a reason and hides no other.
fn leases(data: &[u8]) {
    let protobuf = match LeaseItem::page::<LARGEST_PAGE>(&[b"k8s\0", data].concat()) {
        Ok(page) => page.items,
        Err(error) => {
            check_reason(&error.to_string());
            Vec::new()
        }
    };
    assert!(protobuf.len() <= LARGEST_PAGE);
    for item in page::<LeaseItem>(data).iter().chain(&protobuf) {
        match item {
            // Times are carried on in microseconds.
            Item::Ok(lease) => drop(lease.renew_time.map(|time| time.as_microsecond())),
            Item::Malformed { reason, .. } => check_reason(reason),
        }
    }
}

/// A page of nodes: as for leases, and every question about a node has an answer.
fn nodes(data: &[u8]) {
    let settings = ShootSettings::default();
    for item in &page::<NodeItem>(data) {
        match item {
            Item::Ok(node) => {
                let unhealthy = |kind| settings.is_unhealthy_condition(node.pool.as_deref(), kind);
                let _ = (node.in_place_update(), node.true_conditions().any(unhealthy));
            }
            Item::Malformed { reason, .. } => check_reason(reason),
        }
    }
}

/// A page as lease-probe decodes it: with at most as many items as it asked for.
fn page<'a, I: Deserialize<'a> + PartialEq + std::fmt::Debug>(data: &'a [u8]) -> Vec<Item<I>> {
    let (all, asked) = (
        ItemList::<I>::from_slice(data),
        ItemList::<I>::at_most::<LARGEST_PAGE>(data),
    );
    match (all, asked) {
        (Ok(all), Ok(asked)) => {
            assert!(asked.items.len() <= LARGEST_PAGE);
            assert_eq!(asked, all);
            asked.items
        }
        (Ok(all), Err(error)) => {
            assert!(all.items.len() > LARGEST_PAGE, "{error}");
            check_reason(&error.to_string());
            Vec::new()
        }
        (Err(error), Err(_)) => {
            check_reason(&error.to_string());
            Vec::new()
        }
        (Err(error), Ok(_)) => panic!("a page is taken although it is no list: {error}"),
    }
}

fn check_reason(reason: &str) {
    assert!(!reason.is_empty() && reason.len() <= LONGEST_REASON, "{reason}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The seeds, and what broke a target once.
    #[test]
    fn seeds() {
        for (name, target) in TARGETS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
            let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
            assert!(!seeds.is_empty(), "{name} has no seeds");
            for seed in seeds {
                target(&std::fs::read(seed.unwrap().path()).unwrap());
            }
        }
    }
}
