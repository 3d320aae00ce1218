//! `release`: the only command that changes something, and only with `--yes`.
//!
//! It runs the loop of the coordinator with the rights of the kubeconfig: for installations that are removed without
//! the hooks of the chart.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use scaling_coordinator::app::release::{ReleaseLine, ReleaseReport, SeedRelease};
use scaling_coordinator::config::Release;
use serde_json::json;
use tokio::sync::watch;
use watchdog_api::config::UnknownFields;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_client::regular_file;
use watchdog_kube::client::{found, request};
use watchdog_kube::key::ObjectKey;

use super::WrittenAnswer;
use crate::args::{ConnectArgs, ReleaseArgs};
use crate::connect::release::{self, ChartRelease};
use crate::connect::seed::SeedReader;
use crate::error::{CommandError, CommandResult, WRONG};
use crate::output::note;
use crate::program::Program;
use crate::render::Frame;

/// Requests a second: a person's share of the seed's API server.
const REQUEST_RATE: u32 = 100;

/// Bytes of a configuration file at most: as many as the programs read.
const MOST_CONFIG_BYTES: usize = 2 << 20;

/// The key of the file in its ConfigMap.
const CONFIG_KEY: &str = "config.yaml";

/// Name of this process in the Lease of the coordinator's leader.
const IDENTITY: &str = "watchdogctl-release";

pub(crate) async fn run(
    connect: &ConnectArgs,
    args: &ReleaseArgs,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    let seed = SeedReader::open(connect).await?;
    let chart = release::named(&seed, connect).await?;
    let rules = watch::Sender::new(Arc::new(rules(&seed, &chart, args).await?));
    let coordinator = ObjectKey {
        namespace: chart.namespace.clone(),
        name: format!("{}-{}", chart.name, Program::ScalingCoordinator),
    };
    let release = SeedRelease {
        lease_namespace: lease_namespace(&seed, &chart, args).await?,
        seed: seed.client,
        rules: rules.subscribe(),
        identity: format!("{IDENTITY}-{}", std::process::id()),
        request_rate: REQUEST_RATE,
        options: Release {
            plan: !args.yes,
            stop_deployment: args.yes.then(|| coordinator.clone()),
            timeout: args.timeout,
        },
    };
    let report = release.run().await.map_err(|error| {
        let what_to_do = "nothing was restored: correct that and run the command again; kubectl get lease -A shows \
                          who leads";
        CommandError::wrong(format!("{error:#}"), what_to_do)
    })?;
    if let Err(error) = &report.ended {
        // Standard output has what was restored; a person must see the rest in both formats.
        note(format_args!("error: {error:#}"));
    }
    written(&report, args, &coordinator, frame)
}

/// The configuration whose resources are restored: of a file, or of the chart's ConfigMap.
async fn rules(seed: &SeedReader, chart: &ChartRelease, args: &ReleaseArgs) -> CommandResult<ProberConfig> {
    let usage = |what: String| {
        let what_to_do = "set --config-file to a file with the dependentResourceInfos of the seed, such as the content \
                          of the ConfigMap that the watchdog read";
        CommandError::usage(what, what_to_do)
    };
    let text = match &args.config_file {
        Some(path) => {
            let content = regular_file::read(path, MOST_CONFIG_BYTES);
            content.map_err(|error| usage(format!("{}: {error}", path.display())))?
        }
        None => {
            let (namespace, name) = (&chart.namespace, format!("{}-prober-config", chart.name));
            let maps: Api<ConfigMap> = Api::namespaced(seed.client.clone(), namespace);
            let map =
                found(&name, request(maps.get(&name)).await).map_err(|error| usage(error.to_string()))?;
            let text = map.and_then(|map| map.data?.remove(CONFIG_KEY));
            let gone = || format!("the ConfigMap {namespace}/{name} does not exist or has no {CONFIG_KEY}");
            text.ok_or_else(|| usage(gone()))?.into_bytes()
        }
    };
    let parsed = prober::parse(&text, UnknownFields::Ignored);
    parsed
        .map(|parsed| parsed.config)
        .map_err(|errors| usage(errors.to_string()))
}

/// The namespace of the leader's Lease. When that of the chart is gone, no replica can lead, so any other one will do.
async fn lease_namespace(
    seed: &SeedReader,
    chart: &ChartRelease,
    args: &ReleaseArgs,
) -> CommandResult<String> {
    let of_chart = || format!("{}-leases", chart.name);
    let name = args.lease_namespace.clone().unwrap_or_else(of_chart);
    let namespaces: Api<Namespace> = Api::all(seed.client.clone());
    match found(&name, request(namespaces.get(&name)).await) {
        Ok(Some(_)) => Ok(name),
        Ok(None) if args.lease_namespace.is_none() => Ok(chart.namespace.clone()),
        Ok(None) => Err(CommandError::usage(
            format!("the namespace {name} does not exist"),
            "set --lease-namespace to the namespace of the membership Leases, or omit it if there is none",
        )),
        // Without the right to read it, the election will say what is missing.
        Err(error) if error.is_forbidden() => Ok(name),
        Err(error) => Err(CommandError::unreachable(
            error.to_string(),
            "check --kubeconfig and --context",
        )),
    }
}

/// The resources that were restored, or would be.
fn written(
    report: &ReleaseReport,
    args: &ReleaseArgs,
    coordinator: &ObjectKey,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    let mut text: String = report.lines.iter().map(|line| format!("{line}\n")).collect();
    if let Ok(ended) = &report.ended {
        text.push_str(&format!("{ended}\n"));
    }
    if !args.yes {
        text.push_str(&format!(
            "Nothing was written. With --yes, the Deployment {coordinator} is scaled to 0 and all this is restored.\n"
        ));
    }
    let resource = |line: &ReleaseLine| {
        json!({
            "shoot": line.shoot,
            "resource": line.resource,
            "level": line.level,
            "action": line.action,
            "reason": line.reason,
        })
    };
    let held_down = report.ended.as_ref().err();
    let value = json!({
        "dryRun": !args.yes,
        "restored": args.yes && held_down.is_none(),
        "stillHeldDown": held_down.map(ToString::to_string),
        "resources": report.lines.iter().map(resource).collect::<Vec<_>>(),
    });
    Ok(WrittenAnswer {
        code: if held_down.is_some() { WRONG } else { 0 },
        ..WrittenAnswer::of(frame, text, value)?
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;
    use watchdog_api::names::{MELTDOWN_PROTECTION_ANNOTATION, REPLICAS_ANNOTATION};
    use watchdog_sandbox::resource::keys;
    use watchdog_sandbox::{ApiOptions, ApiServer};
    use watchdog_test_support::fixtures::{self, KCM, MCM};
    use watchdog_test_support::real::deployment;
    use watchdog_test_support::sandboxed;
    use watchdog_test_support::workload_controller::{WorkloadController, WorkloadOptions};

    use super::*;
    use crate::testing::{assert_parts, fails, shown};

    const SHOOT: &str = "shoot--a--held-down";
    const COORDINATOR: &str = "watchdog-scaling-coordinator";

    /// A seed whose chart is still there, with one shoot that is held down.
    struct HeldDown {
        api: ApiServer,
        folder: tempfile::TempDir,
        _workloads: WorkloadController,
    }

    impl HeldDown {
        async fn start() -> Self {
            let namespaces = ["garden", "watchdog-leases", SHOOT].map(str::to_owned).to_vec();
            let api = ApiServer::start(ApiOptions {
                namespaces,
                ..ApiOptions::default()
            });
            let api = api.await.unwrap();
            let cluster = json!({"metadata": {"name": SHOOT}, "spec": {"shoot": fixtures::shoot("40s")}});
            api.create(&keys::CLUSTERS, "", cluster).unwrap();
            for (name, recorded) in [(KCM, "2"), (MCM, "1")] {
                let annotations = json!({REPLICAS_ANNOTATION: recorded, MELTDOWN_PROTECTION_ANNOTATION: ""});
                deploy(&api, SHOOT, name, 0, annotations);
            }
            deploy(&api, "garden", COORDINATOR, 2, json!({}));
            let config = fixtures::prober("probeInterval: 10s", "0s");
            let map = json!({"metadata": {"name": "watchdog-prober-config"}, "data": {CONFIG_KEY: config}});
            api.create(&keys::CONFIG_MAPS, "garden", map).unwrap();
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("kubeconfig"), api.kubeconfig("operator")).unwrap();
            let controllers = sandboxed::client(&api.kubeconfig("controllers")).await.unwrap();
            let workloads = WorkloadController::start(&controllers, WorkloadOptions::new(Duration::ZERO));
            Self {
                api,
                folder,
                _workloads: workloads,
            }
        }

        fn command(&self, options: &str) -> String {
            let kubeconfig = self.folder.path().join("kubeconfig");
            format!("--kubeconfig {} release{options}", kubeconfig.display())
        }

        fn replicas(&self, namespace: &str, name: &str) -> Option<i64> {
            let object = self.api.store().find(&keys::DEPLOYMENTS, namespace, name)?;
            Some(object.number("/spec/replicas"))
        }

        fn writes(&self) -> usize {
            let audit = self.api.audit().into_iter();
            audit
                .filter(|entry| entry.user == "operator" && entry.is_write())
                .count()
        }
    }

    fn deploy(api: &ApiServer, namespace: &str, name: &str, replicas: i32, annotations: Value) {
        let mut deployment = deployment(name, replicas);
        deployment["metadata"]["annotations"] = annotations;
        api.create(&keys::DEPLOYMENTS, namespace, deployment).unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dry_run_comes_first_and_then_everything_is_restored_in_order() {
        let seed = HeldDown::start().await;
        let planned = shown(&seed.command("")).await;
        let parts = [
            &format!("{SHOOT}: level 0: apps/v1 Deployment {KCM}: scale to 2: "),
            &format!("{SHOOT}: level 1: apps/v1 Deployment {MCM}: scale to 1: "),
            "2 resources are held down in 1 shoots",
            "Nothing was written. With --yes, the Deployment garden/watchdog-scaling-coordinator is scaled to 0",
        ];
        assert_parts(&planned, &parts);
        let planned: Value = serde_json::from_str(&shown(&seed.command(" -o json")).await).unwrap();
        assert_eq!(
            (&planned["dryRun"], &planned["restored"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(planned["resources"][0]["action"], "scale to 2");
        assert_eq!((seed.writes(), seed.replicas(SHOOT, KCM)), (0, Some(0)));

        let done: Value = serde_json::from_str(&shown(&seed.command(" --yes -o json")).await).unwrap();
        assert_eq!(
            (&done["dryRun"], &done["restored"]),
            (&json!(false), &json!(true))
        );
        let actions = done["resources"].as_array().unwrap().iter();
        let actions: Vec<_> = actions.map(|line| line["action"].clone()).collect();
        assert_eq!(actions, ["restored", "restored"]);
        let counts = [KCM, MCM].map(|name| seed.replicas(SHOOT, name));
        assert_eq!(counts, [Some(2), Some(1)]);
        assert_eq!(seed.replicas("garden", COORDINATOR), Some(0));
        assert_parts(
            &shown(&seed.command("")).await,
            &["0 resources are held down in 0 shoots"],
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_release_that_is_not_in_time_says_that_no_shoot_is_protected() {
        let seed = HeldDown::start().await;
        let lease = json!({
            "metadata": {"name": "scaling-coordinator-leader"},
            "spec": {
                "holderIdentity": "frozen", "leaseDurationSeconds": 3_600,
                "renewTime": "2026-11-26T21:00:00.000000Z",
            },
        });
        seed.api.create(&keys::LEASES, "watchdog-leases", lease).unwrap();
        let what = "no shoot is protected any more: the Deployment garden/watchdog-scaling-coordinator is scaled to 0";
        fails(&seed.command(" --yes --timeout 2s"), 1, what).await;
        assert_eq!(seed.replicas("garden", COORDINATOR), Some(0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_its_rules_it_touches_nothing_and_says_what_is_missing() {
        let seed = HeldDown::start().await;
        let config = seed.folder.path().join("prober.yaml");
        let with = format!(" --yes --config-file {}", config.display());
        fails(&seed.command(&with), 2, "--config-file").await;
        std::fs::write(&config, "dependentResourceInfos: soon").unwrap();
        fails(&seed.command(&with), 2, "dependentResourceInfos").await;
        fails(
            &seed.command(" -n other"),
            2,
            "the ConfigMap other/watchdog-prober-config",
        )
        .await;
        let other = " --yes --lease-namespace nowhere";
        fails(&seed.command(other), 2, "the namespace nowhere does not exist").await;
        assert_eq!(seed.writes(), 0);
    }
}
