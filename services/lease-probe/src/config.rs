//! Command line -> validated configuration.

use std::process::ExitCode;

use clap::Parser;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::config_file::ConfigFile;
use watchdog_runtime::process::usage_error;

/// Watches the node leases of every shoot of a seed and streams per-shoot health verdicts over gRPC.
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// DNS name that the certificates of the other lease-probe replicas must carry. Default: the name of the chart's
    /// Service in the namespace.
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The options that all services share.
    pub common: CommonArgs,
    /// DNS name in the certificates of the other replicas.
    pub server_name: String,
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
            server_name,
            file,
        })
    }
}
