//! Command line -> validated configuration.

use clap::Parser;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::config_file::ConfigFile;
use watchdog_runtime::trace::OtlpEndpoint;

/// Watches the node leases of every shoot of a seed and streams per-shoot health verdicts over gRPC.
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// Collector of OpenTelemetry traces (OTLP over gRPC), http or https; one trace for each verdict that changes.
    /// Default: no traces.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<OtlpEndpoint>,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The options that all services share.
    pub common: CommonArgs,
    /// Where traces go, if anywhere.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// The configuration file.
    pub file: ConfigFile<ProberConfig>,
}

impl CommandLine for Args {
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(self) -> anyhow::Result<Config> {
        let file = self.common.load_config(prober::parse)?;
        Ok(Config {
            common: self.common,
            otlp_endpoint: self.otlp_endpoint,
            file,
        })
    }
}
