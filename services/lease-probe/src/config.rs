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

    /// DNS name that the certificates of the other lease-probe replicas must carry. Default: the name of the chart's
    /// Service in the namespace.
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,

    /// Collector of OpenTelemetry traces (OTLP over gRPC), http or https; one trace for each verdict that changes.
    /// Default: no traces.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<OtlpEndpoint>,

    /// Memory in MiB that the answers of all shoots' API servers may take together while they are read.
    #[arg(long, value_name = "MIB", default_value_t = 96, value_parser = clap::value_parser!(u16).range(32..=4096))]
    answer_memory: u16,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The options that all services share.
    pub common: CommonArgs,
    /// DNS name in the certificates of the other replicas.
    pub server_name: String,
    /// Where traces go, if anywhere.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Bytes for the answers of shoots.
    pub answer_memory: usize,
    /// The configuration file.
    pub file: ConfigFile<ProberConfig>,
}

impl CommandLine for Args {
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(self) -> Result<Config, String> {
        let parse = |bytes: &[u8]| prober::parse(bytes).map_err(|errors| errors.lines());
        let file = ConfigFile::load(self.common.config_file.clone(), parse)?;
        let server_name = self
            .tls_server_name
            .unwrap_or_else(|| format!("dependency-watchdog-lease-probe.{}.svc", self.common.namespace));
        Ok(Config {
            common: self.common,
            server_name,
            otlp_endpoint: self.otlp_endpoint,
            answer_memory: usize::from(self.answer_memory) << 20,
            file,
        })
    }
}
