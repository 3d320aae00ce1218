//! The command line of the Go program, and what it means for the services.
//!
//! It is translated into the command lines of the services, so that their defaults and checks are written once.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches as _};
use watchdog_kube::leadership::{ElectionTiming, LeaseTimes};
use watchdog_runtime::args::CommonArgs;

use crate::go_flags::{IGNORED_FLAGS, ignored_flag, in_one_form, parse_bool};

/// The flags of the Go program that have a meaning here, and a few of our own.
#[derive(Debug, Clone, Args)]
struct Flags {
    /// Configuration file (YAML), as gardenlet writes it. Unknown fields are ignored, with a warning.
    #[arg(long, value_name = "FILE")]
    config_file: PathBuf,

    /// Kubeconfig of the seed. Default: the file named by KUBECONFIG, otherwise the Pod's service account. An empty
    /// value is the default.
    #[arg(long, value_name = "FILE", value_parser = OsStringValueParser::new())]
    kubeconfig: Option<OsString>,

    /// Address that serves /metrics.
    #[arg(long, value_name = "[IP]:PORT", default_value = ":9643", value_parser = bind_address)]
    metrics_bind_addr: SocketAddr,

    /// Address that serves /healthz and /readyz.
    #[arg(long, value_name = "[IP]:PORT", default_value = ":9644", value_parser = bind_address)]
    health_bind_addr: SocketAddr,

    /// A leader is always elected. false is accepted but has no effect.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "true", default_missing_value = "true", action = ArgAction::Set, value_parser = parse_bool)]
    enable_leader_election: bool,

    /// Namespace of the Lease of the leader election.
    #[arg(long, value_name = "NAMESPACE", default_value = "garden", value_parser = NonEmptyStringValueParser::new())]
    leader_election_namespace: String,

    /// Time without a change after which candidates take the Lease.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = watchdog_api::duration::parse)]
    leader_elect_lease_duration: Duration,

    /// Time after its last renewal during which the leader may act.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = watchdog_api::duration::parse)]
    leader_elect_renew_deadline: Duration,

    /// Time between two renewals.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = watchdog_api::duration::parse)]
    leader_elect_retry_period: Duration,

    /// Least severe log level: debug, info, warn, error or panic, or a number for more than info.
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = log_level)]
    zap_log_level: &'static str,

    /// Format of the log lines: json or console.
    #[arg(long, value_name = "ENCODER", default_value = "json", value_parser = ["json", "console"], ignore_case = true)]
    zap_encoder: String,

    /// Address that the gRPC APIs listen on, in plaintext, for kubectl port-forward. Not a flag of the Go program.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9645")]
    grpc_addr: SocketAddr,

    /// Check the configuration file, print its errors and the fields that are ignored, and exit with 0 if it is valid,
    /// otherwise with 2. Not a flag of the Go program.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", action = ArgAction::Set, value_parser = parse_bool)]
    check_config: bool,

    /// Also connect to loopback, link-local and metadata addresses if a shoot's kubeconfig points there. For tests. Not
    /// a flag of the Go program.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "false", default_missing_value = "true", action = ArgAction::Set, value_parser = parse_bool)]
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
}

// === impl Services ===

impl Services {
    /// The options that all services share.
    #[must_use]
    pub fn common(&self) -> &CommonArgs {
        match self {
            Self::Prober(configs) => &configs.0.args.common,
            Self::Weeder(config) => &config.args.common,
        }
    }
}

// === impl DropInOptions ===

impl DropInOptions {
    /// Reads the command line and the configuration file that it names.
    ///
    /// # Errors
    /// When one of them is wrong, or the command line asks for help: see [`watchdog_runtime::process::usage_error`].
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<Self> {
        let args = in_one_form(&mut command(), args)?;
        let matches = command().try_get_matches_from(args)?;
        let Some((role, matches)) = matches.subcommand() else {
            return Err(command()
                .error(clap::error::ErrorKind::MissingSubcommand, "name a role")
                .into());
        };
        let flags = Flags::from_arg_matches(matches)?;
        let times = LeaseTimes {
            lease_duration: flags.leader_elect_lease_duration,
            renew_deadline: flags.leader_elect_renew_deadline,
            retry_period: flags.leader_elect_retry_period,
        };
        times.check().context("--leader-elect-*")?;
        let allow_local_addresses = ("--allow-local-addresses", flags.allow_local_addresses);
        let check_config = ("--check-config", flags.check_config);
        let services = match role {
            "prober" => Services::Prober(Box::new((
                flags.parse::<lease_probe::config::Args>(&[allow_local_addresses, check_config])?,
                // It reads the same file; what is ignored there is printed once.
                flags.parse::<scaling_coordinator::config::Args>(&[])?,
            ))),
            _ => Services::Weeder(Box::new(flags.parse::<weeder::config::Args>(&[check_config])?)),
        };
        Ok(Self {
            services,
            health_addr: flags.health_bind_addr,
            timing: times.into(),
            ignored: ignored(matches, &flags),
        })
    }
}

// === impl Flags ===

impl Flags {
    /// The configuration of a service with these flags. Switches are passed on only if they were given.
    fn parse<A: watchdog_runtime::cli::CommandLine>(
        &self,
        switches: &[(&str, bool)],
    ) -> anyhow::Result<A::Config> {
        let log_format = if self.zap_encoder.eq_ignore_ascii_case("json") {
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
        if let Some(kubeconfig) = self.kubeconfig.as_ref().filter(|file| !file.is_empty()) {
            option("--kubeconfig", kubeconfig);
        }
        let given = switches.iter().filter(|(_, is_given)| *is_given);
        args.extend(given.map(|(switch, _)| OsStr::new(*switch)));
        A::try_parse_from(args)?.check()
    }
}

fn command() -> Command {
    let ignored = IGNORED_FLAGS.map(ignored_flag);
    let role = |name: &'static str, about: &'static str| {
        let role = Flags::augment_args(Command::new(name));
        // Of a flag that is repeated, Go takes the last value.
        role.about(about).args(ignored.clone()).args_override_self(true)
    };
    Command::new("dependency-watchdog")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The services of the dependency watchdog, as a drop-in replacement for Gardener's dependency-watchdog.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(role(
            "prober",
            "Probes the node leases of shoots, and scales their dependants down and up.",
        ))
        .subcommand(role(
            "weeder",
            "Deletes crash-looping pods once the service that they need is ready again.",
        ))
}

/// The flags that were given and have no effect.
fn ignored(matches: &ArgMatches, flags: &Flags) -> Vec<&'static str> {
    let given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let disabled = (!flags.enable_leader_election).then_some("enable-leader-election");
    IGNORED_FLAGS.into_iter().filter(given).chain(disabled).collect()
}

/// Reads an address. As in Go, one without an IP stands for all addresses.
fn bind_address(text: &str) -> anyhow::Result<SocketAddr> {
    if text == "0" {
        bail!("health and metrics cannot be switched off; write [IP]:PORT, such as :9643");
    }
    let port = text.strip_prefix(':').map(|port| format!("[::]:{port}"));
    let address = port.as_deref().unwrap_or(text);
    address
        .parse()
        .with_context(|| format!("{text:?} is not [IP]:PORT, such as :9643"))
}

/// The level of zap as one of ours.
fn log_level(text: &str) -> anyhow::Result<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "debug" => Ok("debug"),
        "info" => Ok("info"),
        "warn" => Ok("warn"),
        "error" | "panic" => Ok("error"),
        number => match number.parse::<i64>() {
            Ok(1) => Ok("debug"),
            Ok(2..) => Ok("trace"),
            _ => bail!("must be debug, info, warn, error, panic or a number above 0"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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

    fn parse(role: &str, config: &str, flags: &[&str]) -> anyhow::Result<DropInOptions> {
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
        assert_eq!(prober.timing, LeaseTimes::CLIENT_GO.into());
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
        let log = |flags: &[&str]| {
            let options = parse("prober", CONFIG, flags).unwrap();
            let common = options.services.common();
            (common.log_level.clone(), common.log_format)
        };
        let (level, format) = log(&[]);
        for flags in [
            &["--zap-log-level=debug"][..],
            &["--zap-log-level", "debug"],
            &["-zap-log-level=DEBUG"],
            &["-zap-log-level", "1"],
            &["-zap-log-level", "+1"],
            &["--zap-log-level=error", "--zap-log-level=debug"],
            &["-zap-devel", "--zap-log-level=debug", "-zap-devel=f"],
        ] {
            let (changed, unchanged) = log(flags);
            assert_eq!(changed.as_str(), "debug", "{flags:?}");
            assert_eq!(unchanged, format, "{flags:?}");
        }
        assert_eq!(level.as_str(), "info");
        assert_eq!(log(&["--zap-log-level=300"]).0.as_str(), "trace");
        assert_ne!(log(&["-zap-encoder", "Console"]).1, format);
        let addressed = parse("prober", CONFIG, &["-health-bind-addr", "0.0.0.0:1"]).unwrap();
        assert_eq!(addressed.health_addr.to_string(), "0.0.0.0:1");
        let slower = parse("prober", CONFIG, &["--leader-elect-retry-period=1s500ms"]).unwrap();
        assert_eq!(slower.timing.usual.retry_period, Duration::from_millis(1500));
        for (flags, expected) in [
            (&[][..], None),
            (&["--kubeconfig="], None),
            (&["-kubeconfig", ""], None),
            (&["--kubeconfig=seed.yaml"], Some(Path::new("seed.yaml"))),
            (&["--kubeconfig=seed.yaml", "--kubeconfig="], None),
        ] {
            let options = parse("prober", CONFIG, flags).unwrap();
            assert_eq!(
                options.services.common().kubeconfig.as_deref(),
                expected,
                "{flags:?}"
            );
        }
    }

    #[test]
    fn booleans_and_flags_without_effect_are_those_of_go() {
        let ignored = |flags: &[&str]| parse("prober", CONFIG, flags).unwrap().ignored;
        for value in ["1", "t", "T", "true", "TRUE", "True"] {
            let flag = format!("--enable-leader-election={value}");
            assert_eq!(ignored(&[&flag]), [""; 0], "{value}");
        }
        for value in ["0", "f", "F", "false", "FALSE", "False"] {
            let flag = format!("-enable-leader-election={value}");
            assert_eq!(ignored(&[&flag]), ["enable-leader-election"], "{value}");
        }
        assert_eq!(ignored(&["-enable-leader-election"]), [""; 0]);
        for flags in [
            &["--kube-api-qps=-1"][..],
            &["--kube-api-qps", "-1"],
            &["-kube-api-qps", "1e3"],
            &["-kube-api-qps", "20", "--kube-api-qps=30"],
        ] {
            assert_eq!(ignored(flags), ["kube-api-qps"], "{flags:?}");
        }
        assert_eq!(ignored(&["--pprof-bind-addr="]), ["pprof-bind-addr"]);
        assert_eq!(ignored(&["-zap-time-encoding", "ISO8601"]), ["zap-time-encoding"]);
    }

    /// Each error names the flag, the value and what is allowed.
    #[test]
    fn values_that_go_refuses_are_refused() {
        for (flags, parts) in [
            (
                &["--enable-leader-election=yes"][..],
                ["--enable-leader-election", "'yes'", "true"],
            ),
            (
                &["--enable-leader-election="],
                ["--enable-leader-election", "''", "true"],
            ),
            (
                &["--enable-leader-election", "false"],
                ["\"false\"", "not a flag", "--name=value"],
            ),
            (&["--zap-log-level=0"], ["--zap-log-level", "'0'", "above 0"]),
            (&["--zap-log-level=-1"], ["--zap-log-level", "'-1'", "above 0"]),
            (
                &["--zap-log-level=fatal"],
                ["--zap-log-level", "'fatal'", "panic"],
            ),
            (
                &["--zap-log-level=dpanic"],
                ["--zap-log-level", "'dpanic'", "panic"],
            ),
            (&["--zap-encoder=xml"], ["--zap-encoder", "'xml'", "console"]),
            (
                &["--zap-log-level=loud", "--zap-log-level=info"],
                ["--zap-log-level", "'loud'", "debug"],
            ),
            (
                &["--leader-elect-retry-period=2"],
                ["--leader-elect-retry-period", "'2'", "unit"],
            ),
            (
                &["--leader-elect-retry-period="],
                ["--leader-elect-retry-period", "''", "duration"],
            ),
            (
                &["--leader-election-namespace="],
                ["--leader-election-namespace", "value", "required"],
            ),
            (&["--health-bind-addr="], ["--health-bind-addr", "''", ":9643"]),
            (
                &["--kube-api-qps"],
                ["--kube-api-qps", "without a value", "=VALUE"],
            ),
            (&["---zap-devel"], ["---zap-devel", "not a flag", "--name=value"]),
            (&["--", "--zap-devel"], ["\"--\"", "not a flag", "--name=value"]),
            (&["-no-such-flag=1"], ["--no-such-flag", "unexpected", "--help"]),
        ] {
            let error = parse("prober", CONFIG, flags).unwrap_err();
            assert!(error.is::<clap::Error>(), "{flags:?}: {error:?}");
            let error = error.to_string();
            assert!(
                parts.iter().all(|part| error.contains(part)),
                "{flags:?}: {error}"
            );
        }
    }

    #[test]
    fn addresses_that_only_go_takes_are_refused() {
        for (flag, parts) in [
            ("--metrics-bind-addr=0", ["'0'", "cannot be switched off"]),
            ("--health-bind-addr=0", ["'0'", "cannot be switched off"]),
            (
                "--health-bind-addr=localhost:9644",
                ["localhost:9644", "[IP]:PORT"],
            ),
        ] {
            let error = parse("prober", CONFIG, &[flag]).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_ends_the_start() {
        let overlap = parse("prober", CONFIG, &["--leader-elect-lease-duration=10s"]).unwrap_err();
        assert!(overlap.to_string().contains("--leader-elect-*"), "{overlap:?}");
        let bad = parse("weeder", "watchDuration: soon\n", &[]).unwrap_err();
        assert!(bad.to_string().contains(":1:16: "), "{bad:?}");
    }
}
