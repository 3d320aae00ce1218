//! Command line -> validated configuration.

use std::num::NonZeroU32;

use clap::Parser;
use watchdog_api::policy::{Mode, parse_seed_mode};
use watchdog_api::weeder::{self, WeederConfig};
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::config_file::ConfigFile;

/// Watches the readiness of services in all namespaces of a seed and, once one is ready again, deletes the pods in
/// CrashLoopBackOff that depend on it.
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// Take the dependants of a Service also from its annotation dependency-watchdog.gardener.cloud/dependants. Takes
    /// the permission to list and watch all Services.
    #[arg(long)]
    dependants_annotation: bool,

    /// Mode: protect, or observe. In observe everything is decided, timed, reported and counted, and no pod is
    /// deleted.
    #[arg(long, default_value_t = Mode::Protect, value_name = "MODE", value_parser = parse_seed_mode)]
    mode: Mode,

    /// Publish Kubernetes Events also in mode observe.
    #[arg(long)]
    observe_events: bool,

    /// Requests a second to the seed's API server at most; those of the membership are not counted
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    request_rate: u32,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The options that all services share.
    pub common: CommonArgs,
    /// The configuration file.
    pub file: ConfigFile<WeederConfig>,
    /// True when Services may declare dependants by an annotation.
    pub dependants_annotation: bool,
    /// Mode: protect or observe.
    pub mode: Mode,
    /// Kubernetes Events also in mode observe.
    pub observe_events: bool,
    /// Requests a second at most, of everything except the membership.
    pub request_rate: NonZeroU32,
}

impl CommandLine for Args {
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(self) -> anyhow::Result<Config> {
        let file = self.common.load_config(weeder::parse)?;
        Ok(Config {
            common: self.common,
            file,
            dependants_annotation: self.dependants_annotation,
            mode: self.mode,
            observe_events: self.observe_events,
            request_rate: NonZeroU32::new(self.request_rate).unwrap_or(NonZeroU32::MIN),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(content: &str) -> anyhow::Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weeder.yaml");
        std::fs::write(&path, content).unwrap();
        let args = [
            "weeder",
            "--insecure-plaintext",
            "--config-file",
            path.to_str().unwrap(),
        ];
        Args::try_parse_from(args).unwrap().check()
    }

    #[test]
    fn what_gardener_deploys_loads() {
        let content = "
watchDuration: 5m0s
servicesAndDependantSelectors:
  etcd-main-client:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: In, values: [apiserver]}
  kube-apiserver:
    podSelectors:
    - matchExpressions:
      - {key: gardener.cloud/role, operator: In, values: [controlplane]}
      - {key: role, operator: NotIn, values: [main, apiserver]}
";
        let config = config(content).unwrap();
        assert_eq!(config.file.subscribe().borrow().services.len(), 2);
    }

    #[test]
    fn all_errors_come_at_once_with_their_places() {
        let content =
            "watchDuration: 5\nservicesAndDependantSelectors:\n  etcd: {podSelectors: []}\ntypo: 1\n";
        let errors = config(content).unwrap_err().to_string();
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines.len(), 3, "{errors}");
        assert!(lines[0].contains("weeder.yaml:1:16: watchDuration: "), "{errors}");
        assert!(lines[2].contains("weeder.yaml:4:1: typo: "), "{errors}");
    }
}
