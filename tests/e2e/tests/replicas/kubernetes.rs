//! Three coordinators on a real kube-apiserver, judged by its audit log: one is killed and started again, another is
//! frozen for longer than its lease.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{BOUND, COUNTS, CoordinatorTargets, ReplicaProcess, flip, report};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};
use watchdog_test_support::coordinator::{FakeProbe, Outcome};
use watchdog_test_support::fixtures;
use watchdog_test_support::history::timeline::Timeline;
use watchdog_test_support::history::{self, History};
use watchdog_test_support::real::{
    ApiServerOptions, RealControlPlane, create_cluster, create_deployment, create_namespace,
    install_seed_crds,
};
use watchdog_test_support::wait;
use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

const REPLICAS: [&str; 3] = ["a", "b", "c"];
const SHOOTS: usize = 9;

/// The writes to dependants and membership Leases, with their authors.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Request
  users: [a, b, c]
  resources:
  - group: apps
    resources: [deployments, deployments/scale]
  - group: coordination.k8s.io
    resources: [leases]
- level: None
";

struct Record {
    audit_log: PathBuf,
    shoots: Vec<String>,
}

// === impl Record ===

impl Record {
    fn history(&self) -> anyhow::Result<History> {
        Ok(History::new(history::from_audit_log(&self.audit_log)?))
    }

    /// Waits until each shoot was last acted on by one of those accepted.
    async fn until_last_authors(&self, what: &str, fits: impl Fn(&str, &str) -> bool) {
        wait::until(what, BOUND, || async {
            let history = self.history()?;
            for shoot in &self.shoots {
                let author = history.last_author(shoot).unwrap_or_default();
                anyhow::ensure!(fits(shoot, author), "{shoot} was last acted on by {author:?}");
            }
            Ok(Some(()))
        })
        .await
        .unwrap();
    }

    async fn until_acting(&self) {
        let actions = || anyhow::Ok(self.history()?.check().actions);
        let before = actions().unwrap();
        wait::until("each replica acts", BOUND, || async {
            let now = actions()?;
            for replica in REPLICAS {
                anyhow::ensure!(now.get(replica) > before.get(replica), "{replica} does not act");
            }
            Ok(Some(()))
        })
        .await
        .unwrap();
    }
}

async fn create_shoots(seed: &Client, shoots: &[String]) -> anyhow::Result<()> {
    for shoot in shoots {
        create_namespace(seed, shoot).await?;
        for (name, replicas) in COUNTS {
            create_deployment(seed, shoot, name, i32::try_from(*replicas)?).await?;
        }
        create_cluster(seed, shoot, fixtures::shoot("40s")).await?;
    }
    Ok(())
}

async fn until_restored(seed: &Client, shoots: &[String]) {
    wait::until("everything is restored", BOUND, || async {
        for shoot in shoots {
            let api: Api<Deployment> = Api::namespaced(seed.clone(), shoot);
            for (name, count) in COUNTS {
                let deployment = api.get(name).await?;
                let wanted = deployment.spec.and_then(|spec| spec.replicas);
                let held = deployment.metadata.annotations.unwrap_or_default();
                let held = held.contains_key("dependency-watchdog.gardener.cloud/meltdown-protection-active");
                let restored = wanted == Some(i32::try_from(*count)?) && !held;
                anyhow::ensure!(restored, "{shoot}/{name} wants {wanted:?}, held down: {held}");
            }
        }
        Ok(Some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_acts_on_a_shoot_while_one_is_killed_and_one_frozen() {
    let plane = RealControlPlane::start("real-replicas").await.unwrap();
    let policy = plane.scratch().write("audit-policy.yaml", POLICY).unwrap();
    let audit_log = plane.scratch().join("audit.log");
    let mut options = ApiServerOptions::new("seed")
        .flag(&format!("--audit-policy-file={}", policy.display()))
        .flag(&format!("--audit-log-path={}", audit_log.display()));
    for replica in REPLICAS {
        options = options.user(replica, &["system:masters"]);
    }
    let server = plane.api_server_with(options).await.unwrap();
    let seed = server.client();
    install_seed_crds(&seed).await.unwrap();
    create_namespace(&seed, "garden").await.unwrap();
    let shoots: Vec<_> = (0..SHOOTS).map(|i| format!("shoot--real--s{i}")).collect();
    create_shoots(&seed, &shoots).await.unwrap();
    let options = WorkloadOptions::new(Duration::from_millis(100));
    let _workloads = WorkloadController::start(&seed, options);

    until_restored(&seed, &shoots).await;
    let (timeline, _recorder) = Timeline::start(&seed).await.unwrap();
    let probe = Arc::new(FakeProbe::start().await.unwrap());
    probe.say(shoots.iter().map(String::as_str), Outcome::Healthy);
    let config = fixtures::prober("probeInterval: 5s", "100ms");
    let config = plane.scratch().write("prober.yaml", config).unwrap();
    let around = CoordinatorTargets {
        scratch: plane.scratch(),
        config: &config,
        namespace: "garden",
        seed: server
            .url()
            .trim_start_matches("https://")
            .parse::<SocketAddr>()
            .unwrap(),
        probe: probe.address(),
    };
    let start = async |name: &str| {
        let kubeconfig = server.kubeconfig_for(name)?;
        ReplicaProcess::start(&around, name, &kubeconfig).await
    };
    let (a, b, c) = tokio::try_join!(start("a"), start("b"), start("c")).unwrap();
    let record = Record { audit_log, shoots };
    let flips = flip(&probe, &record.shoots);
    record
        .until_last_authors("somebody has acted on every shoot", |_, author| {
            !author.is_empty()
        })
        .await;
    record.until_acting().await;

    let history = record.history().unwrap();
    let of = |shoot: &&String| matches!(history.last_author(shoot), Some("a" | "b"));
    let theirs: BTreeSet<_> = record.shoots.iter().filter(of).cloned().collect();
    a.process.kill_9().await.unwrap();
    b.process.sigstop().unwrap();
    let a = a.again().await.unwrap();
    record
        .until_last_authors("others have taken over", |shoot, author| {
            author != "b" || !theirs.contains(shoot)
        })
        .await;
    b.process.sigcont().unwrap();
    record.until_acting().await;

    drop(flips);
    probe.say(record.shoots.iter().map(String::as_str), Outcome::Healthy);
    until_restored(&seed, &record.shoots).await;
    let report = report(&record.history().unwrap(), &timeline, &record.shoots);
    eprintln!("{report}");
    report.check().unwrap();
    assert!(
        report.handovers.expired > 0 && report.handovers.acknowledged > 0,
        "{report}"
    );
    drop((a, b, c));
}
