//! The command line of the Go program, and what it means for the services.
//!
//! It is translated into the command lines of the services, so that their defaults and checks are written once.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches as _};
use watchdog_kube::membership::ElectionTiming;
use watchdog_runtime::args::CommonArgs;

/// Flags of the Go program that have no meaning here.
const IGNORED_FLAGS: [&str; 7] = [
    "concurrent-reconciles",
    "kube-api-burst",
    "kube-api-qps",
    "pprof-bind-addr",
    "zap-devel",
    "zap-stacktrace-level",
    "zap-time-encoding",
];

/// The flags of the Go program that have a meaning here, and a few of our own.
#[derive(Debug, Clone, Args)]
struct Flags {
    /// Configuration file (YAML), as gardenlet writes it. Unknown fields are ignored, with a
    /// warning.
    #[arg(long, value_name = "FILE")]
    config_file: PathBuf,

    /// Kubeconfig of the seed. Default: the Pod's service account, else the file named by KUBECONFIG.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Where /metrics listens.
    #[arg(long, value_name = "[IP]:PORT", default_value = ":9643", value_parser = bind_address)]
    metrics_bind_addr: SocketAddr,

    /// Where /healthz and /readyz listen.
    #[arg(long, value_name = "[IP]:PORT", default_value = ":9644", value_parser = bind_address)]
    health_bind_addr: SocketAddr,

    /// A leader is always elected. false is accepted, and has no effect.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    enable_leader_election: bool,

    /// Namespace of the Lease of the leader election.
    #[arg(long, value_name = "NAMESPACE", default_value = "garden")]
    leader_election_namespace: String,

    /// Candidates take a Lease that did not change for this time.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = watchdog_api::duration::parse)]
    leader_elect_lease_duration: Duration,

    /// The leader acts for this time from its last renewal.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = watchdog_api::duration::parse)]
    leader_elect_renew_deadline: Duration,

    /// From one renewal to the next.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = watchdog_api::duration::parse)]
    leader_elect_retry_period: Duration,

    /// Least severe log level: debug, info, warn, error or panic, or a number for more than info.
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = log_level)]
    zap_log_level: &'static str,

    /// How log lines are written: json or console.
    #[arg(long, value_name = "ENCODER", default_value = "json", value_parser = ["json", "console"])]
    zap_encoder: String,

    /// Where the gRPC APIs listen, in plaintext: for kubectl port-forward. Not a flag of the Go program.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9645")]
    grpc_addr: SocketAddr,

    /// Check the configuration file, print what is wrong with it, and exit: 0 when it is good, 2 when not. Not a flag
    /// of the Go program.
    #[arg(long)]
    check_config: bool,

    /// Also connect to loopback, link-local and metadata addresses if a shoot's kubeconfig points there. For tests. Not
    /// a flag of the Go program.
    #[arg(long)]
    allow_local_addresses: bool,
}

/// The services of a role, with their configuration.
#[derive(Debug)]
pub enum Services {
    /// `prober`.
    Prober(Box<(lease_probe::config::Config, scaling_coordinator::config::Config)>),
    /// `weeder`.
    Weeder(Box<weeder::config::Config>),
}

/// The command line, checked, with the configuration of the services.
#[derive(Debug)]
pub struct DropInOptions {
    /// The services to run.
    pub services: Services,
    /// Where the health endpoints listen.
    pub health_addr: SocketAddr,
    /// The durations of the leader election.
    pub timing: ElectionTiming,
    /// Flags that were given and have no effect.
    pub ignored: Vec<&'static str>,
    /// Only check the configuration file.
    pub check_config: bool,
}

/// Why the process does not start.
#[derive(Debug)]
pub enum StartError {
    /// The flags are wrong, or ask for help.
    Usage(clap::Error),
    /// The configuration file or a time is wrong.
    Invalid(anyhow::Error),
}

impl From<clap::Error> for StartError {
    fn from(error: clap::Error) -> Self {
        Self::Usage(error)
    }
}

impl From<anyhow::Error> for StartError {
    fn from(error: anyhow::Error) -> Self {
        Self::Invalid(error)
    }
}

// === impl Services ===

impl Services {
    /// The options that all services share.
    #[must_use]
    pub fn common(&self) -> &CommonArgs {
        match self {
            Self::Prober(configs) => &configs.0.common,
            Self::Weeder(config) => &config.common,
        }
    }
}

// === impl DropInOptions ===

impl DropInOptions {
    /// Reads the command line and the configuration file that it names.
    ///
    /// # Errors
    /// When one of them is wrong.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, StartError> {
        let matches = command().try_get_matches_from(args.into_iter().map(two_dashes))?;
        let Some((role, matches)) = matches.subcommand() else {
            return Err(command()
                .error(clap::error::ErrorKind::MissingSubcommand, "name a role")
                .into());
        };
        let flags = Flags::from_arg_matches(matches)?;
        let timing = ElectionTiming {
            lease_duration: flags.leader_elect_lease_duration,
            renew_deadline: flags.leader_elect_renew_deadline,
            retry_period: flags.leader_elect_retry_period,
        };
        timing.check().context("--leader-elect-*")?;
        let services = match role {
            "prober" => Services::Prober(Box::new((
                flags.parse::<lease_probe::config::Args>(&["--allow-local-addresses"])?,
                flags.parse::<scaling_coordinator::config::Args>(&[])?,
            ))),
            _ => Services::Weeder(Box::new(flags.parse::<weeder::config::Args>(&[])?)),
        };
        Ok(Self {
            services,
            health_addr: flags.health_bind_addr,
            timing,
            ignored: ignored(matches, &flags),
            check_config: flags.check_config,
        })
    }
}

// === impl Flags ===

impl Flags {
    /// The configuration of a service with these flags. Switches for tests are passed on only if they were given.
    fn parse<A: watchdog_runtime::cli::CommandLine>(&self, switches: &[&str]) -> anyhow::Result<A::Config> {
        let log_format = if self.zap_encoder == "json" {
            "json"
        } else {
            "text"
        };
        let (metrics, grpc) = (self.metrics_bind_addr.to_string(), self.grpc_addr.to_string());
        let mut args: Vec<&OsStr> = ["service", "--insecure-plaintext", "--ignore-unknown-fields"]
            .map(OsStr::new)
            .to_vec();
        let mut option = |name: &'static str, value| args.extend([OsStr::new(name), value]);
        option("--config-file", self.config_file.as_os_str());
        option("--namespace", OsStr::new(&self.leader_election_namespace));
        option("--admin-addr", OsStr::new(&metrics));
        option("--grpc-addr", OsStr::new(&grpc));
        option("--log-level", OsStr::new(self.zap_log_level));
        option("--log-format", OsStr::new(log_format));
        if let Some(kubeconfig) = &self.kubeconfig {
            option("--kubeconfig", kubeconfig.as_os_str());
        }
        if self.allow_local_addresses {
            args.extend(switches.iter().map(OsStr::new));
        }
        A::try_parse_from(args)?.check()
    }
}

fn command() -> Command {
    let ignored = IGNORED_FLAGS.map(|name| {
        let arg = Arg::new(name).long(name).value_name("VALUE").num_args(0..=1);
        arg.help("A flag of the Go program; has no effect.")
    });
    let role = |name: &'static str, about: &'static str| {
        let role = Flags::augment_args(Command::new(name));
        role.about(about).args(ignored.clone())
    };
    Command::new("dependency-watchdog")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The services of the dependency watchdog, in the place of Gardener's dependency-watchdog.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(role(
            "prober",
            "Probes the node leases of shoots, and scales their dependants down and up.",
        ))
        .subcommand(role(
            "weeder",
            "Deletes crash-looping pods once the service that they need is back.",
        ))
}

/// The flags that were given and have no effect.
fn ignored(matches: &ArgMatches, flags: &Flags) -> Vec<&'static str> {
    let given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let disabled = (!flags.enable_leader_election).then_some("enable-leader-election");
    IGNORED_FLAGS.into_iter().filter(given).chain(disabled).collect()
}

/// Go's flags may begin with one dash.
fn two_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => {
            format!("-{text}").into()
        }
        _ => arg,
    }
}

/// Reads an address as Go does. Without an IP, it stands for all addresses.
fn bind_address(text: &str) -> anyhow::Result<SocketAddr> {
    let port = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    let address = port.as_deref().unwrap_or(text);
    address
        .parse()
        .with_context(|| format!("{text:?} is not [IP]:PORT, such as :9643"))
}

/// The level of zap as one of ours.
fn log_level(text: &str) -> anyhow::Result<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "debug" | "1" => Ok("debug"),
        "info" | "0" => Ok("info"),
        "warn" => Ok("warn"),
        "error" | "panic" | "fatal" | "dpanic" => Ok("error"),
        number if number.parse::<u8>().is_ok() => Ok("trace"),
        _ => bail!("must be debug, info, warn, error, panic or a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From pkg/component/nodemanagement/dependencywatchdog/bootstrap.go of Gardener.
    const PROBER: [&str; 4] = [
        "--kube-api-qps=20.0",
        "--kube-api-burst=100",
        "--zap-log-level=INFO",
        "--enable-leader-election=true",
    ];

    const CONFIG: &str = "kubeConfigSecretName: shoot-access-dependency-watchdog-probe
somethingNew: 1
dependentResourceInfos:
- ref: {kind: Deployment, name: kube-controller-manager, apiVersion: apps/v1}
  optional: false
  scaleUp: {level: 0}
  scaleDown: {level: 0}
";

    fn parse(role: &str, config: &str, flags: &[&str]) -> Result<DropInOptions, StartError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dep-config.yaml");
        std::fs::write(&file, config).unwrap();
        let file = format!("--config-file={}", file.display());
        let args = ["dependency-watchdog", role, &file]
            .into_iter()
            .chain(flags.iter().copied());
        DropInOptions::parse(args.map(OsString::from))
    }

    #[test]
    fn the_command_line_of_gardenlet_is_understood() {
        let prober = parse("prober", CONFIG, &PROBER).unwrap();
        assert_eq!(prober.ignored, ["kube-api-burst", "kube-api-qps"]);
        assert_eq!(prober.timing, ElectionTiming::default());
        assert_eq!(prober.health_addr.to_string(), "[::]:9644");
        let common = prober.services.common();
        assert_eq!(common.admin_addr.to_string(), "[::]:9643");
        assert!(common.grpc_addr.ip().is_loopback(), "plaintext stays in the Pod");
        assert_eq!(
            (common.namespace.as_str(), common.log_level.as_str()),
            ("garden", "info")
        );
        let config = "servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {a: b}}]}}";
        let weeder = parse("weeder", config, &["--enable-leader-election=true"]).unwrap();
        assert!(matches!(weeder.services, Services::Weeder(_)) && weeder.ignored.is_empty());
    }

    #[test]
    fn flags_are_written_as_in_go() {
        let flags = [
            "-zap-devel",
            "-zap-encoder=console",
            "-kube-api-qps",
            "20",
            "-health-bind-addr=0.0.0.0:1",
            "--enable-leader-election=false",
            "--leader-elect-retry-period=1s500ms",
        ];
        let prober = parse("prober", CONFIG, &flags).unwrap();
        assert_eq!(
            prober.ignored,
            ["kube-api-qps", "zap-devel", "enable-leader-election"]
        );
        assert_eq!(prober.health_addr.to_string(), "0.0.0.0:1");
        assert_eq!(prober.timing.retry_period, Duration::from_millis(1500));
    }

    #[test]
    fn what_is_wrong_ends_the_start() {
        for (flags, part) in [
            (&["--no-such-flag"][..], "--no-such-flag"),
            (&["--zap-log-level=loud"], "loud"),
            (&["--metrics-bind-addr=9643"], "9643"),
        ] {
            let error = parse("prober", CONFIG, flags).unwrap_err();
            assert!(
                matches!(&error, StartError::Usage(error) if error.to_string().contains(part)),
                "{error:?}"
            );
        }
        let overlap = parse("prober", CONFIG, &["--leader-elect-lease-duration=10s"]).unwrap_err();
        assert!(matches!(overlap, StartError::Invalid(_)), "{overlap:?}");
        let bad = parse("weeder", "watchDuration: soon\n", &[]).unwrap_err();
        assert!(
            matches!(&bad, StartError::Invalid(error) if error.to_string().contains(":1:16: ")),
            "{bad:?}"
        );
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }
}
