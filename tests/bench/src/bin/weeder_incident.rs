//! A seed recovers: services of many shoots become ready within a second, and a part of their dependants is in a crash
//! loop. Measured from outside, at the API server: from the write that makes a service ready to the request that
//! deletes a dependant, once undisturbed and once with the weeder killed in the middle.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use watchdog_bench::{Spread, peak_memory};
use watchdog_e2e::scratch::Scratch;
use watchdog_e2e::watchdog::{Service, Setup};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::store::{Part, WriteOptions};
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};

const SERVICE: &str = "kube-apiserver";
const WEEDER_CONFIG: &str = "
watchDuration: 5m
servicesAndDependantSelectors:
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: NotIn, values: [main, apiserver]}
";

/// One dependant in this many is in a crash loop.
const CRASHING: usize = 3;

/// The size of a control plane pod's other fields, in bytes.
const PADDING: usize = 6_000;

/// A weeder that has not done its work by then hangs.
const BOUND: Duration = Duration::from_secs(120);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, Parser)]
struct Args {
    /// Services, each in a namespace of its own
    #[arg(long, default_value_t = 1_000)]
    services: usize,
    /// Dependants of each; a third of them is in a crash loop
    #[arg(long, default_value_t = 5)]
    dependants: usize,
    /// The services become ready within this many milliseconds
    #[arg(long, default_value_t = 1_000)]
    within: u64,
    /// How long the API server takes for a request, in milliseconds
    #[arg(long, default_value_t = 5)]
    delay: u64,
}

/// The observations of one run.
#[derive(Debug, Default)]
struct Seen {
    watches: usize,
    requests: f64,
    memory: f64,
    connections: u64,
    lists: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    run(args, false).await?;
    run(args, true).await
}

async fn run(args: Args, restart: bool) -> anyhow::Result<()> {
    let (api, crashing) = seed(args).await?;
    let scratch = Scratch::new("weeder-incident")?;
    let setup = Setup::new(&scratch, "", WEEDER_CONFIG)?;
    let mut weeder = setup.weeder("weeder-0", &api.kubeconfig("weeder-0")).await?;
    weeder.wait_ready().await?;
    let idle = peak_memory(weeder.process.id())?;
    let delay = FaultAction::Delay { millis: args.delay };
    api.inject(Fault::always(delay).path("/api/v1/namespaces/"));

    let before = api.counters();
    let incident = tokio::spawn(recover(api.clone(), args));
    let mut seen = Seen::default();
    let mut down = None;
    let end = Instant::now() + BOUND;
    loop {
        let left = api.store().all(&keys::PODS, None).len() + crashing - args.services * args.dependants;
        let open = api.counters();
        seen.watches = seen.watches.max(open.open_watches);
        look(&weeder, &mut seen).await?;
        if left == 0 {
            break;
        }
        ensure!(
            Instant::now() < end,
            "{left} of {crashing} pods are left after {BOUND:?}"
        );
        if restart && down.is_none() && left <= crashing / 2 {
            let killed = Instant::now();
            weeder.process.kill_9().await?;
            weeder = setup.again(&weeder).await?;
            weeder.wait_ready().await?;
            down = Some((killed.elapsed(), crashing - left));
        }
        tokio::time::sleep(LOOK).await;
    }
    let ready = incident.await??;
    seen.connections = api.counters().connections - before.connections;
    let delays = delays(&api, &ready, &mut seen)?;
    ensure!(
        delays.len() == crashing,
        "{} deletions of {crashing} pods",
        delays.len()
    );
    let spread = Spread::of(delays).context("nothing was deleted")?;
    weeder.process.stop(Duration::from_secs(30)).await?;
    report(args, crashing, idle, &seen, spread, down)
}

fn report(
    args: Args,
    crashing: usize,
    idle: f64,
    seen: &Seen,
    spread: Spread,
    down: Option<(Duration, usize)>,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let (services, dependants, within, delay) = (args.services, args.dependants, args.within, args.delay);
    match down {
        None => writeln!(out, "undisturbed")?,
        Some((took, deleted)) => writeln!(
            out,
            "killed (SIGKILL) after {deleted} deletions, ready again {:.0} ms later",
            took.as_secs_f64() * 1e3
        )?,
    }
    writeln!(
        out,
        "  {services} services ready within {within} ms, {dependants} dependants each, {crashing} in a crash loop; \
         {delay} ms for a request"
    )?;
    writeln!(out, "  from ready to deletion: {spread}")?;
    writeln!(
        out,
        "  at one time: {} watches, {} lists and deletions; {} new connections, {} lists in all",
        seen.watches, seen.requests, seen.connections, seen.lists
    )?;
    writeln!(
        out,
        "  memory of the weeder: {idle:.0} MiB when idle, {:.0} MiB at most",
        seen.memory
    )?;
    Ok(())
}

/// A seed whose services are not ready, and the number of pods that are in a crash loop.
async fn seed(args: Args) -> anyhow::Result<(ApiServer, usize)> {
    let options = ApiOptions {
        namespaces: vec!["garden".to_owned()],
        watch_log: 1 << 16,
        audit_log: 1 << 17,
        ..ApiOptions::default()
    };
    let api = ApiServer::start(options).await?;
    let padding = "x".repeat(PADDING);
    let mut crashing = 0;
    for shoot in 0..args.services {
        let namespace = namespace(shoot);
        api.create(&keys::NAMESPACES, "", json!({"metadata": {"name": namespace}}))?;
        api.create(&keys::ENDPOINT_SLICES, &namespace, slice())?;
        for pod in 0..args.dependants {
            let crashes = (shoot + pod).is_multiple_of(CRASHING);
            crashing += usize::from(crashes);
            api.create(&keys::PODS, &namespace, pod_object(pod, &padding))?;
            let change = |value: &mut Value| {
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("status".to_owned(), status(crashes));
                }
                Ok(())
            };
            let name = format!("pod-{pod}");
            let options = WriteOptions::default();
            api.store()
                .modify(&keys::PODS, &namespace, &name, Part::All, &options, change)?;
        }
    }
    Ok((api, crashing))
}

/// Makes the services ready, evenly over the time that it is to take, and says when each was.
async fn recover(api: ApiServer, args: Args) -> anyhow::Result<BTreeMap<String, Timestamp>> {
    let begun = Instant::now();
    let mut ready = BTreeMap::new();
    let count = u32::try_from(args.services)?;
    for shoot in 0..count {
        tokio::time::sleep_until(begun + Duration::from_millis(args.within) * shoot / count).await;
        let namespace = namespace(shoot.try_into()?);
        let change = |value: &mut Value| {
            if let Some(fields) = value.as_object_mut() {
                fields.insert("endpoints".to_owned(), endpoints(true));
            }
            Ok(())
        };
        let options = WriteOptions::default();
        ready.insert(namespace.clone(), Timestamp::now());
        api.store().modify(
            &keys::ENDPOINT_SLICES,
            &namespace,
            SERVICE,
            Part::All,
            &options,
            change,
        )?;
    }
    Ok(ready)
}

/// From ready to the request that deleted a pod, for all pods that were.
fn delays(
    api: &ApiServer,
    ready: &BTreeMap<String, Timestamp>,
    seen: &mut Seen,
) -> anyhow::Result<Vec<Duration>> {
    let mut delays = Vec::new();
    for entry in api.audit() {
        let Some((namespace, "pods")) = entry
            .path
            .strip_prefix("/api/v1/namespaces/")
            .and_then(|rest| rest.split_once('/'))
            .map(|(namespace, rest)| (namespace, rest.split('/').next().unwrap_or_default()))
        else {
            continue;
        };
        if entry.verb == "list" {
            seen.lists += 1;
        } else if entry.verb == "delete" && entry.code == 200 {
            let since = ready
                .get(namespace)
                .context("deleted before its service was ready")?;
            delays.push(entry.time.duration_since(*since).try_into()?);
        }
    }
    Ok(delays)
}

async fn look(weeder: &Service, seen: &mut Seen) -> anyhow::Result<()> {
    seen.memory = seen.memory.max(peak_memory(weeder.process.id())?);
    let requests = weeder.metric("watchdog_weeder_requests_in_flight").await?;
    seen.requests = seen.requests.max(requests.unwrap_or_default());
    Ok(())
}

fn namespace(shoot: usize) -> String {
    format!("shoot--{shoot}")
}

fn slice() -> Value {
    json!({
        "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
        "addressType": "IPv4",
        "endpoints": endpoints(false),
    })
}

fn endpoints(ready: bool) -> Value {
    json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}])
}

fn pod_object(pod: usize, padding: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("pod-{pod}"),
            "labels": {"gardener.cloud/role": "controlplane", "role": format!("role-{pod}")},
            "annotations": {"padding": padding},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "owner", "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "main", "image": "i"}]},
    })
}

fn status(crashes: bool) -> Value {
    let state = if crashes {
        json!({"waiting": {"reason": "CrashLoopBackOff"}})
    } else {
        json!({"running": {}})
    };
    json!({"containerStatuses": [{"name": "main", "restartCount": 5, "state": state}]})
}
