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
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::store::{Part, WriteOptions};
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::watchdog::{Service, Setup};

const SERVICE: &str = "kube-apiserver";
const WEEDER_CONFIG: &str = "
watchDuration: 5m
servicesAndDependantSelectors:
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: NotIn, values: [main, apiserver]}
  etcd-main-client:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: In, values: [apiserver]}
";

/// The services of a namespace, the first one alone unless two are asked for.
const SERVICES: [&str; 2] = [SERVICE, "etcd-main-client"];

/// One dependant in this many is in a crash loop.
const CRASHING: usize = 3;

/// The size of a control plane pod's other fields, in bytes.
const PADDING: usize = 6_000;

/// A weeder that has not done its work by then hangs.
const BOUND: Duration = Duration::from_secs(900);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, Parser)]
struct Args {
    /// Namespaces with services
    #[arg(long, default_value_t = 1_000)]
    services: usize,
    /// Services in each namespace
    #[arg(long, default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=2))]
    each: usize,
    /// Requests a second that the weeder may make
    #[arg(long, default_value_t = 100)]
    request_rate: u32,
    /// Leave out the second half, in which the weeder is killed
    #[arg(long)]
    undisturbed: bool,
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

#[derive(Debug, Default)]
struct RunObservations {
    watches: usize,
    requests: f64,
    memory: f64,
    connections: u64,
    lists: usize,
    /// From the first service that is ready to the last deletion.
    took: Duration,
    all_requests: usize,
    most_in_a_second: usize,
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

async fn run(args: Args, restart: bool) -> anyhow::Result<()> {
    let (api, crashing) = seed(args).await?;
    let scratch = Scratch::new("weeder-incident")?;
    let setup = Setup::new(&scratch, "", WEEDER_CONFIG)?;
    let rate = format!("--request-rate={}", args.request_rate);
    let command = setup.weeder_command("weeder-0", &api.kubeconfig("weeder-0"))?;
    let started = Instant::now();
    let mut weeder = setup.custom(command.arg(rate)).await?;
    weeder.wait_ready().await?;
    let ready_after = started.elapsed();
    let idle = peak_memory(weeder.process.id())?;
    let delay = FaultAction::Delay { millis: args.delay };
    api.inject(Fault::always(delay).path("/api/v1/namespaces/"));

    let before = api.counters();
    let incident = tokio::spawn(recover(api.clone(), args));
    let mut seen = RunObservations::default();
    let mut down = None;
    let end = Instant::now() + BOUND;
    loop {
        let others = args.services * (args.dependants + 2 * args.each - 1);
        let left = api.store().all(&keys::PODS, None).len() + crashing - others;
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
    requests(&api, &ready, &mut seen)?;
    ensure!(
        delays.len() == crashing,
        "{} deletions of {crashing} pods",
        delays.len()
    );
    let spread = Spread::of(delays).context("nothing was deleted")?;
    weeder.process.stop(Duration::from_secs(30)).await?;
    report(args, crashing, (idle, ready_after), &seen, spread, down)
}

fn report(
    args: Args,
    crashing: usize,
    (idle, ready_after): (f64, Duration),
    seen: &RunObservations,
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
        "  {services} namespaces with {} services each, ready within {within} ms; {dependants} dependants, {crashing} \
         pods in a crash loop; {delay} ms for a request",
        args.each
    )?;
    writeln!(
        out,
        "  the weeder was ready {:.1} s after its start; last deletion after {:.2} s; {} requests from then on, at \
         most {} in a second (allowed: {})",
        ready_after.as_secs_f64(),
        seen.took.as_secs_f64(),
        seen.all_requests,
        seen.most_in_a_second,
        args.request_rate
    )?;
    writeln!(out, "  from ready to deletion: {spread}")?;
    writeln!(
        out,
        "  at one time: {} watches, {} deletions and reads; {} new connections, {} lists and reads of pods in a \
         namespace",
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
        for service in SERVICES.into_iter().take(args.each) {
            api.create(&keys::ENDPOINT_SLICES, &namespace, slice(service))?;
            api.create(&keys::PODS, &namespace, server_object(service))?;
        }
        if args.each == 2 {
            // What needs the second service.
            let name = "apiserver";
            api.create(&keys::PODS, &namespace, pod_object(&namespace, name, &padding))?;
            let crashes = shoot.is_multiple_of(CRASHING);
            crashing += usize::from(crashes);
            set_status(&api, &namespace, name, status(crashes))?;
        }
        for pod in 0..args.dependants {
            let crashes = (shoot + pod).is_multiple_of(CRASHING);
            crashing += usize::from(crashes);
            let name = format!("pod-{pod}");
            api.create(&keys::PODS, &namespace, pod_object(&namespace, &name, &padding))?;
            set_status(&api, &namespace, &name, status(crashes))?;
        }
    }
    Ok((api, crashing))
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
            let since = Timestamp::from_second(Timestamp::now().as_second())?.to_string();
            let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": since});
            set_status(
                &api,
                &namespace,
                &server(service),
                json!({"conditions": [condition]}),
            )?;
            let change = |value: &mut Value| {
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("endpoints".to_owned(), endpoints(service, true));
                }
                Ok(())
            };
            let options = WriteOptions::default();
            api.store().modify(
                &keys::ENDPOINT_SLICES,
                &namespace,
                service,
                Part::All,
                &options,
                change,
            )?;
        }
    }
    Ok(ready)
}

/// From ready to the request that deleted a pod, for all pods that were.
fn delays(
    api: &ApiServer,
    ready: &BTreeMap<String, Timestamp>,
    seen: &mut RunObservations,
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

async fn look(weeder: &Service, seen: &mut RunObservations) -> anyhow::Result<()> {
    seen.memory = seen.memory.max(peak_memory(weeder.process.id())?);
    let requests = weeder.metric("watchdog_weeder_requests_in_flight").await?;
    seen.requests = seen.requests.max(requests.unwrap_or_default());
    Ok(())
}

fn namespace(shoot: usize) -> String {
    format!("shoot--{shoot}")
}

fn set_status(api: &ApiServer, namespace: &str, pod: &str, status: Value) -> anyhow::Result<()> {
    let change = |value: &mut Value| {
        if let Some(fields) = value.as_object_mut() {
            fields.insert("status".to_owned(), status);
        }
        Ok(())
    };
    let options = WriteOptions::default();
    api.store()
        .modify(&keys::PODS, namespace, pod, Part::All, &options, change)?;
    Ok(())
}

/// How long it took, and what the weeder asked for, the membership not counted.
fn requests(
    api: &ApiServer,
    ready: &BTreeMap<String, Timestamp>,
    seen: &mut RunObservations,
) -> anyhow::Result<()> {
    let first = *ready.values().min().context("no service became ready")?;
    let audit = api.audit();
    let made: Vec<Timestamp> = audit
        .iter()
        .filter(|entry| entry.time >= first && !entry.path.contains("/leases"))
        .map(|entry| entry.time)
        .collect();
    let second = jiff::SignedDuration::from_secs(1);
    let mut begin = 0;
    for (end, time) in made.iter().enumerate() {
        while made
            .get(begin)
            .is_some_and(|from| time.duration_since(*from) >= second)
        {
            begin += 1;
        }
        seen.most_in_a_second = seen.most_in_a_second.max(end + 1 - begin);
    }
    seen.all_requests = made.len();
    let last = audit
        .iter()
        .rev()
        .find(|entry| entry.verb == "delete" && entry.code == 200);
    if let Some(last) = last {
        seen.took = last.time.duration_since(first).try_into()?;
    }
    Ok(())
}

fn server(service: &str) -> String {
    format!("{service}-0")
}

/// The pod behind a service.
fn server_object(service: &str) -> Value {
    json!({
        "metadata": {
            "name": server(service),
            "labels": {"role": "main"},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": service, "uid": service, "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "main", "image": "i"}]},
    })
}

fn slice(service: &str) -> Value {
    json!({
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints(service, false),
    })
}

fn endpoints(service: &str, ready: bool) -> Value {
    let target = json!({"kind": "Pod", "name": server(service)});
    json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}, "targetRef": target}])
}

fn pod_object(namespace: &str, name: &str, padding: &str) -> Value {
    let role = if name == "apiserver" {
        "apiserver"
    } else {
        "controller"
    };
    json!({
        "metadata": {
            "name": name,
            "labels": {"gardener.cloud/role": "controlplane", "role": role},
            "annotations": {"padding": padding},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": format!("{namespace}-{name}"),
                "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "main", "image": "i"}]},
    })
}

fn status(crashes: bool) -> Value {
    if !crashes {
        return json!({"containerStatuses": [{"name": "main", "restartCount": 5, "state": {"running": {}}}]});
    }
    // Long ago, as nodes tell it in whole seconds.
    let ended =
        json!({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-21T08:00:00Z"}});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    json!({
        "containerStatuses": [{"name": "main", "restartCount": 5, "state": waiting, "lastState": ended}],
    })
}
