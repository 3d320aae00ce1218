//! Command line -> validated configuration.

use std::process::ExitCode;

use clap::Parser;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_kube::membership::Timing;
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::config_file::ConfigFile;
use watchdog_runtime::process::usage_error;

/// Scales the dependants of shoots down when their nodes are cut off, and up again, level by level.
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// Address of a lease-probe replica, instead of finding the replicas by their membership Leases. Repeatable.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    lease_probe: Vec<String>,

    /// DNS name that the certificates of lease-probe must carry. Default: the name of the chart's Service in the
    /// namespace.
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,

    /// Most requests on resources of shoots that this replica sends to the seed in a second. A scale-down takes two
    /// for each resource, so the default works off 500 shoots of three resources in six seconds, well within the ten
    /// that the default grace period leaves; a kube-apiserver takes several times as many.
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    write_rate: u32,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The options that all services share.
    pub common: CommonArgs,
    /// Addresses of lease-probe; when empty they are found by membership Leases.
    pub lease_probe: Vec<String>,
    /// DNS name in the certificates of lease-probe.
    pub server_name: String,
    /// Most requests a second on resources of shoots.
    pub write_rate: u32,
    /// How long the membership takes for what; [`Timing::PRODUCTION`] except in tests.
    pub timing: Timing,
    /// The configuration file.
    pub file: ConfigFile<ProberConfig>,
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
        Self::from_args(args)
            .map_err(|error| usage_error(&error))
            .and_then(|config| {
                if config.common.check_config {
                    Err(ExitCode::SUCCESS)
                } else {
                    Ok(config)
                }
            })
    }

    /// Reads the configuration file.
    ///
    /// # Errors
    /// All that is wrong with it, a line each.
    pub fn from_args(args: Args) -> Result<Self, String> {
        let parse = |bytes: &[u8]| {
            prober::parse(bytes).map_err(|errors| {
                let lines = errors
                    .errors()
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>();
                lines.join("\n")
            })
        };
        let file = ConfigFile::load(args.common.config_file.clone(), parse)?;
        let server_name = args
            .tls_server_name
            .unwrap_or_else(|| format!("dependency-watchdog-lease-probe.{}.svc", args.common.namespace));
        Ok(Self {
            common: args.common,
            lease_probe: args.lease_probe,
            server_name,
            write_rate: args.write_rate,
            timing: Timing::PRODUCTION,
            file,
        })
    }
}

/// Checks `host:port`.
fn address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("has no port: write host:port")?;
    let port: u16 = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
    let bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || port == 0 || bare_ipv6 || host.contains(['/', '@', ' ']) {
        return Err("must be of the form host:port; an IPv6 address stands in brackets".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for good in [
            "localhost:1",
            "10.0.0.1:9645",
            "lease-probe.garden.svc:9645",
            "[::1]:9645",
        ] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in [
            "localhost",
            ":1",
            "localhost:0",
            "localhost:x",
            "::1:9645",
            "http://a:1",
            "a b:1",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, "probeInterval: soon\nnonsense: 1\n").unwrap();
        let args = [
            "x",
            "--insecure-plaintext",
            "--config-file",
            file.to_str().unwrap(),
        ];
        let error = Config::from_args(Args::try_parse_from(args).unwrap()).unwrap_err();
        for part in [
            ":1:16: probeInterval",
            ":2:1: ",
            "kubeConfigSecretName",
            "dependentResourceInfos",
        ] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }
}
