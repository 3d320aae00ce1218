//! A seed recovers: services of many shoots become ready within a second, and a part of their dependants is in a crash
//! loop. Measured from outside, at the API server: from the write that makes a service ready to the request that
//! deletes a dependant, once undisturbed and once with the weeder killed in the middle.

#![allow(clippy::indexing_slicing, reason = "JSON whose absent fields are null")]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use watchdog_api::names::LAST_CHANGE_ANNOTATION;
use watchdog_bench::{Spread, busiest_second, mib, micros_since, print, round, sandbox_seed};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::{ApiServer, AuditEntry, Fault, FaultAction};
use watchdog_test_support::fixtures;
use watchdog_test_support::in_process::modify;
use watchdog_test_support::resource_usage::ProcessUsage;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;
use watchdog_test_support::watchdog::Setup;

/// The services of a namespace, the first one alone unless two are asked for.
const SERVICES: [&str; 2] = ["kube-apiserver", "etcd-main-client"];

/// The dependant of the second service.
const API_SERVER: &str = "apiserver";

/// One dependant in this many is in a crash loop.
const CRASHING: usize = 3;

/// How long the API server takes for a request.
const DELAY_MILLIS: u64 = 5;

/// The size of a control plane pod's other fields, in bytes.
const PADDING: usize = 6_000;

/// A weeder that has not done its work by then hangs.
const BOUND: Duration = Duration::from_secs(900);

#[derive(Debug, Clone, Copy, Parser, Serialize)]
struct Args {
    /// Namespaces with services
    #[arg(long, default_value_t = 1_000)]
    services: usize,
    /// Services in each namespace
    #[arg(long, default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=2))]
    each: usize,
    /// Leave out the second half, in which the weeder is killed
    #[arg(long)]
    undisturbed: bool,
    /// Dependants of each; a third of them is in a crash loop
    #[arg(long, default_value_t = 5)]
    dependants: usize,
    /// The services become ready within this many milliseconds
    #[arg(long, default_value_t = 1_000)]
    within: u64,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WeederFigures {
    #[serde(flatten)]
    args: Args,
    pods_in_crash_loop: usize,
    ready_after_start_ms: f64,
    /// Deletions before the weeder was killed (SIGKILL).
    deletions_before_kill: Option<usize>,
    idle_mib: f64,
    peak_mib: f64,
    #[serde(flatten)]
    requests: WeederRequests,
}

/// The requests of the weeder, the leader election not counted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WeederRequests {
    ready_to_deletion: Option<Spread>,
    /// From the first service that is ready.
    last_deletion_after_seconds: f64,
    /// From then on.
    requests: usize,
    requests_in_busiest_second: usize,
    lists_of_pods_in_a_namespace: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    run(args, false).await?;
    if args.undisturbed {
        return Ok(());
    }
    run(args, true).await
}

async fn run(args: Args, kill: bool) -> anyhow::Result<()> {
    let api = sandbox_seed().await?;
    let crashing = put_on_seed(&api, args)?;
    let scratch = Scratch::new("weeder-incident")?;
    let setup = Setup::new(&scratch, "", &fixtures::weeder("5m"))?;
    let started = Instant::now();
    let mut weeder = setup.weeder("weeder-0", &api.kubeconfig("weeder-0")).await?;
    weeder.wait_ready().await?;
    wait::until_true("the weeder leads", BOUND, || async { Ok(leads(&api)) }).await?;
    let ready_after_start = started.elapsed();
    let idle = ProcessUsage::of([&weeder])?.peak_kb;
    let delay = FaultAction::Delay { millis: DELAY_MILLIS };
    api.inject(Fault::always(delay).path("/api/v1/namespaces/"));

    let incident = tokio::spawn(recover(api.clone(), args));
    let pods = args.services * (args.dependants + args.each - 1);
    let deleted = || pods - api.store().all(&keys::PODS, None).len();
    let (mut deletions_before_kill, mut peak) = (None, idle);
    if kill {
        let half = crashing.div_ceil(2);
        wait::until_true("half of the pods are deleted", BOUND, || async {
            Ok(deleted() >= half)
        })
        .await?;
        peak = ProcessUsage::of([&weeder])?.peak_kb;
        weeder.process.kill_9().await?;
        deletions_before_kill = Some(deleted());
        weeder = weeder.again().await?;
        weeder.wait_ready().await?;
    }
    wait::until_true("all crashing pods are deleted", BOUND, || async {
        let left = crashing.saturating_sub(deleted());
        ensure!(left == 0, "{left} of {crashing} are left");
        Ok(true)
    })
    .await?;
    let ready = incident.await??;
    let figures = WeederFigures {
        args,
        pods_in_crash_loop: crashing,
        ready_after_start_ms: round(ready_after_start.as_secs_f64() * 1e3),
        deletions_before_kill,
        idle_mib: mib(idle),
        peak_mib: mib(ProcessUsage::of([&weeder])?.peak_kb.max(peak)),
        requests: WeederRequests::read(&api.audit(), &ready, crashing)?,
    };
    weeder.process.stop(Duration::from_secs(30)).await?;
    print(&figures)
}

impl WeederRequests {
    /// Once all is done; `ready` says when the services of a namespace were ready.
    fn read(
        audit: &[AuditEntry],
        ready: &BTreeMap<String, Timestamp>,
        crashing: usize,
    ) -> anyhow::Result<Self> {
        let first = *ready.values().min().context("no service became ready")?;
        let (mut delays, mut lists, mut last) = (Vec::new(), 0, 0);
        for entry in audit {
            let parts: Vec<&str> = entry.path.split('/').collect();
            let ["", "api", "v1", "namespaces", namespace, "pods", ..] = parts.as_slice() else {
                continue;
            };
            if entry.verb == "list" {
                lists += 1;
            } else if entry.verb == "delete" && entry.code == 200 {
                let since = ready.get(*namespace);
                let since = since.context("deleted before its service was ready")?;
                delays.push(micros_since(*since, entry)?);
                last = micros_since(first, entry)?;
            }
        }
        let deletions = delays.len();
        ensure!(deletions == crashing, "{deletions} deletions of {crashing} pods");
        let counts = |entry: &&AuditEntry| entry.time >= first && !entry.path.contains("/leases");
        let times: Vec<_> = audit.iter().filter(counts).map(|entry| entry.time).collect();
        Ok(Self {
            ready_to_deletion: Spread::of_micros(delays),
            last_deletion_after_seconds: round(last as f64 / 1e6),
            requests: times.len(),
            requests_in_busiest_second: busiest_second(times),
            lists_of_pods_in_a_namespace: lists,
        })
    }
}

/// Puts services that are not ready on a seed, and returns the number of pods that are in a crash loop.
fn put_on_seed(api: &ApiServer, args: Args) -> anyhow::Result<usize> {
    let mut crashing = 0;
    for shoot in 0..args.services {
        let namespace = namespace(shoot);
        api.create(&keys::NAMESPACES, "", json!({"metadata": {"name": namespace}}))?;
        for service in SERVICES.into_iter().take(args.each) {
            api.create(&keys::ENDPOINT_SLICES, &namespace, slice(service))?;
        }
        let mut pods: Vec<_> = (0..args.dependants)
            .map(|pod| (format!("pod-{pod}"), (shoot + pod).is_multiple_of(CRASHING)))
            .collect();
        if args.each == 2 {
            pods.push((API_SERVER.to_owned(), shoot.is_multiple_of(CRASHING)));
        }
        for (name, crashes) in pods {
            crashing += usize::from(crashes);
            api.create(&keys::PODS, &namespace, pod(&namespace, &name, crashes))?;
        }
    }
    Ok(crashing)
}

/// Makes the services ready, evenly over the time that it should take, and says when each was.
async fn recover(api: ApiServer, args: Args) -> anyhow::Result<BTreeMap<String, Timestamp>> {
    let begun = Instant::now();
    let mut ready = BTreeMap::new();
    let count = u32::try_from(args.services)?;
    for shoot in 0..count {
        tokio::time::sleep_until(begun + Duration::from_millis(args.within) * shoot / count).await;
        let namespace = namespace(shoot.try_into()?);
        ready.insert(namespace.clone(), Timestamp::now());
        for service in SERVICES.into_iter().take(args.each) {
            modify(&api, &keys::ENDPOINT_SLICES, &namespace, service, |slice| {
                slice["endpoints"] = endpoints(true);
                // As the endpoints controller dates it.
                let changed_at = Timestamp::now().to_string();
                slice["metadata"]["annotations"] = json!({ LAST_CHANGE_ANNOTATION: changed_at });
            })?;
        }
    }
    Ok(ready)
}

/// True once the weeder has the Lease of the leader election.
fn leads(api: &ApiServer) -> bool {
    let lease = api.store().find(&keys::LEASES, "garden", "weeder-leader");
    lease.is_some_and(|lease| !lease.text("/spec/holderIdentity").is_empty())
}

fn namespace(shoot: usize) -> String {
    format!("shoot--{shoot}")
}

fn slice(service: &str) -> Value {
    json!({
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints(false),
    })
}

fn endpoints(ready: bool) -> Value {
    json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}])
}

fn pod(namespace: &str, name: &str, crashes: bool) -> Value {
    let mut container = json!({"name": "main", "restartCount": 5, "state": {"running": {}}});
    if crashes {
        container["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        // As nodes tell it, in whole seconds.
        let ended = json!({"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-21T08:00:00Z"});
        container["lastState"] = json!({ "terminated": ended });
    }
    json!({
        "metadata": {
            "name": name,
            "labels": {"gardener.cloud/role": "controlplane", "role": name},
            "annotations": {"padding": "x".repeat(PADDING)},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": format!("{namespace}-{name}"),
                "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "main", "image": "i"}]},
        "status": {"containerStatuses": [container]},
    })
}
