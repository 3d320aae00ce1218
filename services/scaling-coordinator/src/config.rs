//! Command line -> validated configuration.

use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use watchdog_api::names::{is_dns_label, is_dns_subdomain};
use watchdog_api::policy::{Mode, parse_seed_mode};
use watchdog_api::prober::{self, ProberConfig};
use watchdog_kube::key::ObjectKey;
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::cli::CommandLine;
use watchdog_runtime::config_file::ConfigFile;

/// Scales the dependants of shoots down when their nodes are cut off, and up again, level by level.
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub struct Args {
    /// The options that all services share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Address of a lease-probe replica, instead of finding the replicas by their membership Leases. Repeatable.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub lease_probe: Vec<String>,

    /// Maximum number of requests about shoots that this replica sends to the seed per second. A scale-down of three
    /// Deployments in two levels takes at most seven. So the default scales 1,000 shoots down in 3.5 seconds, within
    /// the seven that the default grace period leaves. At most 64 shoots have requests in flight at once, regardless of
    /// how slow the API server is.
    #[arg(long, default_value_t = 2_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub request_rate: u32,

    /// Default mode of the shoots of the seed: protect, or observe. In mode observe, the program decides, times,
    /// reports, and counts everything, but writes nothing. The annotation dependency-watchdog.gardener.cloud/mode of a
    /// Shoot takes precedence.
    #[arg(long, default_value_t = Mode::Protect, value_name = "MODE", value_parser = parse_seed_mode)]
    pub mode: Mode,

    /// Also publish Kubernetes Events about shoots in mode observe.
    #[arg(long)]
    pub observe_events: bool,

    /// Restore everything that the watchdog holds down, level by level, print the restored resources, and exit with 0
    /// if nothing is held down anymore. Waits until every other replica of the coordinator has stopped.
    #[arg(long)]
    release_all: bool,

    /// With --release-all: first scale this Deployment to 0. Use it for the coordinator's own Deployment.
    #[arg(long, requires = "release_all", value_name = "NAMESPACE/NAME")]
    #[arg(value_parser = namespaced_name)]
    stop_deployment: Option<ObjectKey>,

    /// With --release-all: give up after this time.
    #[arg(long, requires = "release_all", default_value = "4m", value_name = "DURATION")]
    #[arg(value_parser = watchdog_api::duration::parse)]
    release_timeout: Duration,
}

/// Everything that the service is built from.
#[derive(Debug)]
pub struct Config {
    /// The command line.
    pub args: Args,
    /// The configuration file.
    pub file: ConfigFile<ProberConfig>,
    /// Set when the process only restores what is held down, and ends.
    pub release: Option<Release>,
}

/// How everything that is held down is restored.
#[derive(Debug, Clone)]
pub struct Release {
    /// Only print what would be done.
    pub plan: bool,
    /// The Deployment that is scaled to 0 first.
    pub stop_deployment: Option<ObjectKey>,
    /// Give up after this time.
    pub timeout: Duration,
}

impl CommandLine for Args {
    type Config = Config;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(self) -> anyhow::Result<Config> {
        let file = self.common.load_config(prober::parse)?;
        let release = self.release_all.then(|| Release {
            plan: false,
            stop_deployment: self.stop_deployment.clone(),
            timeout: self.release_timeout,
        });
        Ok(Config {
            args: self,
            file,
            release,
        })
    }
}

/// Reads `NAMESPACE/NAME`.
fn namespaced_name(text: &str) -> anyhow::Result<ObjectKey> {
    let (namespace, name) = text
        .split_once('/')
        .context("has no namespace: write NAMESPACE/NAME")?;
    anyhow::ensure!(
        is_dns_label(namespace) && is_dns_subdomain(name),
        "must be of the form NAMESPACE/NAME, such as garden/watchdog-scaling-coordinator"
    );
    Ok(ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Checks `host:port`.
fn address(text: &str) -> anyhow::Result<String> {
    let (host, port) = text.rsplit_once(':').context("has no port: write host:port")?;
    let port: u16 = port.parse().with_context(|| format!("{port:?} is not a port"))?;
    let bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    anyhow::ensure!(
        !host.is_empty() && port != 0 && !bare_ipv6 && !host.contains(['/', '@', ' ']),
        "must be of the form host:port; write an IPv6 address in brackets"
    );
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
            assert_eq!(address(good).unwrap(), good);
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
}
