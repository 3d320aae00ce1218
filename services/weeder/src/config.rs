//! Command line -> validated configuration.

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
    /// The options that all services share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Mode: protect, or observe. In mode observe, the program decides, times, reports, and counts everything, but
    /// deletes no pod.
    #[arg(long, default_value_t = Mode::Protect, value_name = "MODE", value_parser = parse_seed_mode)]
    pub mode: Mode,

    /// Also publish Kubernetes Events in mode observe.
    #[arg(long)]
    pub observe_events: bool,

    /// Maximum number of requests per second to the seed's API server, after a burst of 200. Requests of the leader
    /// election do not count.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub request_rate: u16,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The command line.
    pub args: Args,
    /// The configuration file.
    pub file: ConfigFile<WeederConfig>,
}

impl CommandLine for Args {
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(self) -> anyhow::Result<Config> {
        let file = self.common.load_config(weeder::parse)?;
        Ok(Config { args: self, file })
    }
}
