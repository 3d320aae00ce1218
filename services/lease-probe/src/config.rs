//! Command line -> validated configuration.

use clap::Parser;
use watchdog_api::prober::{self, ProberConfig};
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::config_file::ConfigFile;

/// Watches the node leases of every shoot of a seed and streams per-shoot health verdicts over gRPC.
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub struct Args {
    /// The options that all services share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Probe all shoots alone, with or without an installed release. Writes nothing, not even a membership Lease, so no
    /// coordinator finds this process or acts on its verdicts.
    #[arg(long)]
    pub standalone: bool,

    /// Memory in MiB for reading answers of API servers that are larger than 64 KiB, 2 MiB each. Twice this amount is
    /// reserved for the leases of shoots that have more than 100.
    #[arg(long, value_name = "MIB", default_value_t = 96, value_parser = clap::value_parser!(u16).range(32..=4096))]
    pub answer_memory: u16,

    /// Also connect to loopback, link-local and metadata addresses if a shoot's kubeconfig points there. For tests
    /// only, because a kubeconfig could make this program connect to its own host or cloud.
    #[arg(long)]
    pub allow_local_addresses: bool,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The command line.
    pub args: Args,
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
        Ok(Config { args: self, file })
    }
}
