//! Command line -> validated configuration.

use std::process::ExitCode;

use clap::Parser;
use watchdog_api::weeder::{self, WeederConfig};
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::config_file::ConfigFile;
use watchdog_runtime::process::usage_error;

/// Watches the readiness of services in all namespaces of a seed and, once one is ready again, deletes the pods in
/// CrashLoopBackOff that depend on it.
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The options that all services share.
    pub common: CommonArgs,
    /// The configuration file.
    pub file: ConfigFile<WeederConfig>,
}

impl Config {
    /// Reads the command line and the configuration file.
    ///
    /// # Errors
    /// The exit code with which the process is to end: 0 after --help, --version or a good --check-config, 2 when
    /// something is wrong, after it was printed.
    pub fn from_command_line() -> Result<Self, ExitCode> {
        let args = Args::try_parse().map_err(|error| {
            let code = error.exit_code();
            // Nothing can be done when the output is closed.
            let _ = error.print();
            ExitCode::from(u8::try_from(code).unwrap_or(2))
        })?;
        let config = Self::from_args(args).map_err(|error| usage_error(&error))?;
        if config.common.check_config {
            Err(ExitCode::SUCCESS)
        } else {
            Ok(config)
        }
    }

    /// Reads the configuration file.
    ///
    /// # Errors
    /// All that is wrong with it, a line each.
    pub fn from_args(args: Args) -> Result<Self, String> {
        let parse = |bytes: &[u8]| {
            weeder::parse(bytes).map_err(|errors| {
                let lines = errors
                    .errors()
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>();
                lines.join("\n")
            })
        };
        let file = ConfigFile::load(args.common.config_file.clone(), parse)?;
        Ok(Self {
            common: args.common,
            file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(content: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weeder.yaml");
        std::fs::write(&path, content).unwrap();
        let args = [
            "weeder",
            "--insecure-plaintext",
            "--config-file",
            path.to_str().unwrap(),
        ];
        Config::from_args(Args::try_parse_from(args).unwrap())
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
        let errors = config(content).unwrap_err();
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines.len(), 3, "{errors}");
        assert!(lines[0].contains("weeder.yaml:1:16: watchDuration: "), "{errors}");
        assert!(lines[2].contains("weeder.yaml:4:1: typo: "), "{errors}");
    }
}
