//! A seed recovers: services of many shoots become ready within a second, and a part of their dependants is in a crash
//! loop. Measured from outside, at the API server: from the write that makes a service ready to the request that
//! deletes a dependant, once undisturbed and once with the weeder killed in the middle.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use watchdog_api::names::LAST_CHANGE_ANNOTATION;
use watchdog_bench::usage::Usage;
use watchdog_bench::{Spread, busiest_second, micros_since, print, round};
use watchdog_sandbox::resource::keys;
use watchdog_sandbox::store::{Part, WriteOptions};
use watchdog_sandbox::{ApiOptions, ApiServer, AuditEntry, Fault, FaultAction};
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::wait;
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

/// How long the API server takes for a request.
const DELAY_MILLIS: u64 = 5;

/// Requests a second that the weeder may make, after a burst of 200.
const REQUEST_RATE: u32 = 100;

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
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct WeederFigures {
    namespaces: usize,
    services_of_each: usize,
    dependants_of_each: usize,
    ready_within_ms: u64,
    request_delay_ms: u64,
    pods_in_crash_loop: usize,
    ready_after_start_ms: f64,
    /// Deletions before the weeder was killed (SIGKILL).
    deletions_before_kill: Option<usize>,
    ready_after_kill_ms: Option<f64>,
    ready_to_deletion: Option<Spread>,
    /// From the first service that is ready.
    last_deletion_after_seconds: f64,
    /// From then on, the leader election not counted.
    requests: usize,
    requests_in_busiest_second: usize,
    allowed_requests_per_second: u32,
    lists_of_pods_in_a_namespace: usize,
    new_connections: u64,
    most_watches: usize,
    most_deletions_at_once: f64,
    idle_mib: f64,
    peak_mib: f64,
}

fn millis(time: Duration) -> f64 {
    round(time.as_secs_f64() * 1e3)
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
    let rate = format!("--request-rate={REQUEST_RATE}");
    let command = setup.weeder_command("weeder-0", &api.kubeconfig("weeder-0"))?;
    let started = Instant::now();
    let mut weeder = setup.custom(command.arg(rate)).await?;
    weeder.wait_ready().await?;
    wait::until_true("the weeder leads", BOUND, || async { Ok(leads(&api)) }).await?;
    let mut figures = WeederFigures {
        namespaces: args.services,
        services_of_each: args.each,
        dependants_of_each: args.dependants,
        ready_within_ms: args.within,
        request_delay_ms: DELAY_MILLIS,
        pods_in_crash_loop: crashing,
        ready_after_start_ms: millis(started.elapsed()),
        allowed_requests_per_second: REQUEST_RATE,
        idle_mib: round(Usage::of_process(weeder.process.id())?.peak_mib),
        ..WeederFigures::default()
    };
    let delay = FaultAction::Delay { millis: DELAY_MILLIS };
    api.inject(Fault::always(delay).path("/api/v1/namespaces/"));

    let before = api.counters();
    let incident = tokio::spawn(recover(api.clone(), args));
    let others = args.services * (args.dependants + args.each - 1);
    let end = Instant::now() + BOUND;
    loop {
        let left = api.store().all(&keys::PODS, None).len() + crashing - others;
        figures.look(&api, &weeder).await?;
        if left == 0 {
            break;
        }
        ensure!(
            Instant::now() < end,
            "{left} of {crashing} pods are left after {BOUND:?}"
        );
        if restart && figures.deletions_before_kill.is_none() && left <= crashing / 2 {
            let killed = Instant::now();
            weeder.process.kill_9().await?;
            weeder = setup.again(&weeder).await?;
            weeder.wait_ready().await?;
            figures.ready_after_kill_ms = Some(millis(killed.elapsed()));
            figures.deletions_before_kill = Some(crashing - left);
        }
        tokio::time::sleep(LOOK).await;
    }
    let ready = incident.await??;
    figures.new_connections = api.counters().connections - before.connections;
    figures.read(&api, &ready)?;
    weeder.process.stop(Duration::from_secs(30)).await?;
    print(&figures)
}

impl WeederFigures {
    /// Notes the most of what the weeder takes at one time.
    async fn look(&mut self, api: &ApiServer, weeder: &Service) -> anyhow::Result<()> {
        self.most_watches = self.most_watches.max(api.counters().open_watches);
        let peak = Usage::of_process(weeder.process.id())?.peak_mib;
        self.peak_mib = self.peak_mib.max(round(peak));
        let requests = weeder.metric("watchdog_weeder_requests_in_flight").await?;
        let most = self.most_deletions_at_once;
        self.most_deletions_at_once = most.max(requests.unwrap_or_default());
        Ok(())
    }

    /// Reads what the weeder asked for, once all is done; `ready` says when the services of a namespace were ready.
    fn read(&mut self, api: &ApiServer, ready: &BTreeMap<String, Timestamp>) -> anyhow::Result<()> {
        let first = *ready.values().min().context("no service became ready")?;
        let audit = api.audit();
        let (mut delays, mut last) = (Vec::new(), 0);
        for entry in &audit {
            let rest = entry.path.strip_prefix("/api/v1/namespaces/");
            let Some((namespace, "pods")) = rest.and_then(|rest| {
                let (namespace, rest) = rest.split_once('/')?;
                Some((namespace, rest.split('/').next()?))
            }) else {
                continue;
            };
            if entry.verb == "list" {
                self.lists_of_pods_in_a_namespace += 1;
            } else if entry.verb == "delete" && entry.code == 200 {
                let since = ready
                    .get(namespace)
                    .context("deleted before its service was ready")?;
                delays.push(micros_since(*since, entry)?);
                last = micros_since(first, entry)?;
            }
        }
        let count = self.pods_in_crash_loop;
        ensure!(
            delays.len() == count,
            "{} deletions of {count} pods",
            delays.len()
        );
        self.ready_to_deletion = Spread::of_micros(delays);
        self.last_deletion_after_seconds = round(last as f64 / 1e6);
        let counts = |entry: &&AuditEntry| entry.time >= first && !entry.path.contains("/leases");
        let times: Vec<_> = audit.iter().filter(counts).map(|entry| entry.time).collect();
        self.requests = times.len();
        self.requests_in_busiest_second = busiest_second(times);
        Ok(())
    }
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
            // As the endpoints controller dates it.
            let changed_at = Timestamp::now().to_string();
            let change = |value: &mut Value| {
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("endpoints".to_owned(), endpoints(true));
                }
                if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.insert(
                        "annotations".to_owned(),
                        json!({ LAST_CHANGE_ANNOTATION: changed_at }),
                    );
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

/// True once the weeder has the Lease of the leader election.
fn leads(api: &ApiServer) -> bool {
    let lease = api.store().find(&keys::LEASES, "garden", "weeder-leader");
    lease.is_some_and(|lease| !lease.text("/spec/holderIdentity").is_empty())
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
    // As nodes tell it, in whole seconds.
    let ended =
        json!({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-21T08:00:00Z"}});
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    json!({
        "containerStatuses": [{"name": "main", "restartCount": 5, "state": waiting, "lastState": ended}],
    })
}
