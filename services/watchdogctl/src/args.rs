//! The command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{BoolishValueParser, OsStr, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use watchdog_api::names::is_dns_label;
use watchdog_proto::probe::v1::Outcome;
use watchdog_proto::scaling::v1::Direction;

use crate::program::Program;
use crate::render::Format;
use crate::render::text::{self, OUTCOMES};

/// The help after the options.
const AFTER_HELP: &str = "\
Where the programs are:
  By default, watchdogctl finds the release by its Deployments: in the namespace garden, else in all namespaces. The
  Deployments name the Secret with the certificate. watchdogctl forwards a port to a pod through the API server of
  the seed, as `kubectl port-forward` does. It needs `list` on deployments and pods, `get` and `create` on
  pods/portforward, and `get` on that Secret.
  With --lease-probe, --scaling-coordinator or --weeder it calls these addresses instead.

Examples:
  # One screen, live, of the seed in the current kubeconfig.
  watchdogctl status --watch

  # Is anything wrong on these seeds?
  watchdogctl --contexts seed-a,seed-b check

  # Why is this shoot scaled down?
  watchdogctl shoot shoot--core--crazy

  # What happened to it, with a picture, to attach to a ticket.
  watchdogctl report shoot--core--crazy -o markdown

  # The shoots that are cut off, for a script.
  watchdogctl --lease-probe watchdog-lease-probe.garden.svc:9645 --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key \\
    verdicts --outcome leases-expired -o json

Exit codes:
  0  done; for check: nothing is wrong
  1  something is wrong: check found a problem, a shoot is unknown, or a server refused the request
  2  usage: an option, a file or a permission is wrong
  3  unreachable: no connection, no answer in time, or TLS failed";

/// The heading of the options of the connection.
const CONNECTION: &str = "Connection";

/// Shows what the dependency watchdog of a seed observes, does and waits for. Only `release --yes` changes anything.
#[derive(Debug, Parser)]
#[command(name = "watchdogctl", version, after_long_help = AFTER_HELP, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// json and yaml print the messages of the API as grpcurl does; markdown is for report.
    #[arg(short, long, value_enum, default_value_t = Format::Table, help_heading = "Output")]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
}

/// How the programs are reached.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = CONNECTION)]
pub(crate) struct ConnectArgs {
    /// Address of lease-probe; repeatable for several replicas.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = address)]
    pub(crate) lease_probe: Vec<String>,

    /// Address of scaling-coordinator; repeatable for several replicas.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = address)]
    pub(crate) scaling_coordinator: Vec<String>,

    /// Address of weeder; repeatable for several replicas.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = address)]
    pub(crate) weeder: Vec<String>,

    /// Kubeconfig of the seed, for the port-forward. Default: KUBECONFIG, else ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: the current one.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Contexts of several seeds, whose answers are shown side by side.
    #[arg(
        long,
        value_name = "NAME,NAME",
        value_delimiter = ',',
        conflicts_with = "context"
    )]
    pub(crate) contexts: Vec<String>,

    /// All contexts of the kubeconfig, as with --contexts.
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub(crate) all_contexts: bool,

    /// Namespace of the release in the seed. Default: garden if the watchdog runs there, else the namespace where it
    /// runs.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Name of the release, with which the names of its Deployments and certificates begin. Default: the only release;
    /// with addresses, watchdog.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Secret with tls.crt, tls.key and ca.crt, in --namespace unless it names another one, read through the API server
    /// of the seed. Default: the Secret that the Deployments name.
    #[arg(long, value_name = "[NAMESPACE/]NAME", conflicts_with = "tls_ca")]
    pub(crate) tls_secret: Option<String>,

    /// Certificate authorities (PEM) that the programs' certificates must be signed by.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Your certificate chain (PEM).
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Your private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// DNS name in the programs' certificates. Default: <name>-<program>.<namespace>.svc for each program.
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,

    /// Connect without TLS, to programs that were started with the same option.
    // clap would take false in the environment for a conflict, so ConnectArgs::conflict decides.
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub(crate) insecure_plaintext: bool,
}

impl ConnectArgs {
    /// The addresses of a program.
    pub(crate) fn addresses(&self, program: Program) -> &[String] {
        match program {
            Program::LeaseProbe => &self.lease_probe,
            Program::ScalingCoordinator => &self.scaling_coordinator,
            Program::Weeder => &self.weeder,
        }
    }

    /// True if the programs are called at addresses.
    pub(crate) fn has_addresses(&self) -> bool {
        Program::ALL
            .iter()
            .any(|program| !self.addresses(*program).is_empty())
    }

    /// True if several seeds are asked.
    pub(crate) fn has_contexts(&self) -> bool {
        self.all_contexts || !self.contexts.is_empty()
    }

    /// Two options that contradict each other.
    fn conflict(&self) -> Option<(&'static str, &'static str)> {
        let plaintext = ("--insecure-plaintext", self.insecure_plaintext);
        let addresses = ("addresses of programs", self.has_addresses());
        let contexts = ("--contexts", !self.contexts.is_empty());
        let all_contexts = ("--all-contexts", self.all_contexts);
        let pairs = [
            (plaintext, ("--tls-ca", self.tls_ca.is_some())),
            (plaintext, ("--tls-secret", self.tls_secret.is_some())),
            (all_contexts, contexts),
            (all_contexts, ("--context", self.context.is_some())),
            (all_contexts, addresses),
            (contexts, addresses),
        ];
        let mut conflicts = pairs.into_iter().filter(|(one, other)| one.1 && other.1);
        conflicts.next().map(|(one, other)| (one.0, other.0))
    }
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CtlCommand {
    /// One screen: the shoots that are held down, and those that are not healthy, the most urgent first.
    Status(StatusArgs),
    /// Why a shoot is where it is: verdict, evidence, dependants, what would happen now, incidents.
    Shoot(ShootArg),
    /// The levels that a direction would run now. Nothing is changed.
    Plan {
        #[command(flatten)]
        shoot: ShootArg,
        /// Direction in which to scale.
        #[arg(long, value_parser = directions(["down", "up"]))]
        direction: Direction,
    },
    /// The current incidents of all shoots, and the last one of each shoot.
    Incidents,
    /// The current and the last incident of a shoot: what happened when and why, who did what, how long each stage
    /// took, and what it prevented. -o markdown adds a picture.
    Report(ShootArg),
    /// The weeders and their deletions.
    Weeders(ServiceFilterArgs),
    /// The services that weeders watch, and whether they are ready.
    Services(ServiceFilterArgs),
    /// The replicas: how much each owns, and which are missing.
    Replicas,
    /// Check all Pods of the release: crashes, missing replicas, readiness, permissions, certificates, versions and
    /// clocks. Exits with 1 if one is wrong.
    Check,
    /// Verdicts on shoots.
    Verdicts(VerdictsArgs),
    /// Scaling states of shoots.
    Scaling(ScalingArgs),
    /// Restore everything that the watchdog holds down, level by level, with the rights of your kubeconfig. Without
    /// --yes it only shows what it would do.
    Release(ReleaseArgs),
    /// Write ca.crt, tls.crt and tls.key, for grpcurl: the certificate with which watchdogctl connects.
    Certificate {
        /// Folder for the files.
        #[arg(value_name = "FOLDER", default_value = ".")]
        folder: PathBuf,
    },
    /// Print a completion script for a shell, for example: source <(watchdogctl completion bash)
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the man page, for example: watchdogctl man | man -l -
    Man,
    /// Serve a page about the seed on 127.0.0.1, live: every shoot, and an incident as it happens. Nothing is changed.
    Ui {
        /// Port on 127.0.0.1. Default: one that is free.
        #[arg(long, default_value_t = 0, hide_default_value = true)]
        port: u16,
    },
}

/// Options of `status`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    /// Update every two seconds: in place on a terminal, as plain lines in a pipe.
    #[arg(short, long)]
    pub(crate) watch: bool,

    /// Maximum number of shoots to show, at most 1,000. Shoots that are held down are always shown.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
}

/// One shoot.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShootArg {
    /// Its namespace in the seed (shoot--project--name), or project/name.
    // With an identifier of its own: clap would take it for `--name`, which is the name of the release.
    #[arg(id = "shoot", value_name = "SHOOT", value_parser = shoot_name)]
    pub(crate) name: String,
}

/// Options of `weeders` and `services`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServiceFilterArgs {
    /// Only this shoot: its namespace in the seed (shoot--project--name), or project/name.
    #[arg(long, value_name = "SHOOT", value_parser = shoot_name)]
    pub(crate) shoot: Option<String>,

    /// Only this service, for example kube-apiserver.
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
}

/// Options of `verdicts`.
#[derive(Debug, Clone, Args)]
pub(crate) struct VerdictsArgs {
    /// Only these shoots: namespaces in the seed, or project/name. Default: all.
    #[arg(value_name = "SHOOT", value_parser = shoot_name)]
    pub(crate) shoots: Vec<String>,

    /// Only these outcomes, for example leases-expired; repeatable. The server filters.
    #[arg(long, value_name = "OUTCOME", value_parser = outcome, conflicts_with = "shoots")]
    pub(crate) outcome: Vec<Outcome>,
}

/// Options of `scaling`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScalingArgs {
    /// Only these shoots: namespaces in the seed, or project/name. Default: all.
    #[arg(value_name = "SHOOT", value_parser = shoot_name)]
    pub(crate) shoots: Vec<String>,

    /// Only these directions; repeatable. The server filters.
    #[arg(long, value_parser = directions(["hold", "down", "up"]), conflicts_with = "shoots")]
    pub(crate) direction: Vec<Direction>,
}

/// Options of `release`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReleaseArgs {
    /// Scale the coordinator to 0 and restore. From then on, no shoot of the seed is protected. This also restores what
    /// another watchdog holds down.
    #[arg(long)]
    pub(crate) yes: bool,

    /// Configuration of the prober, for the order and the delays. Default: the ConfigMap <name>-prober-config in
    /// --namespace.
    #[arg(long, value_name = "FILE")]
    pub(crate) config_file: Option<PathBuf>,

    /// Namespace of the Lease of the coordinator's leader. Default: <name>-leases, or --namespace if that is gone.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) lease_namespace: Option<String>,

    /// Give up after this time.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = watchdog_api::duration::parse)]
    pub(crate) timeout: Duration,
}

/// An address, before the programs are asked: a port that is left out would be reported as a program that is away.
fn address(text: &str) -> Result<String, &'static str> {
    let parts = text.rsplit_once(':');
    match parts.filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write a host and a port, for example localhost:9645"),
    }
}

/// The namespace of a shoot, also from `project/name`.
fn shoot_name(text: &str) -> Result<String, &'static str> {
    let name = match text.split_once('/') {
        Some((project, name)) => format!("shoot--{project}--{name}"),
        None => text.to_owned(),
    };
    if is_dns_label(&name) {
        Ok(name)
    } else {
        Err("write the shoot's namespace in the seed, for example shoot--core--crazy, or core/crazy")
    }
}

/// An outcome by its name in the API without the prefix, in any case, with dashes or underscores.
fn outcome(text: &str) -> Result<Outcome, String> {
    let name = format!("OUTCOME_{}", text.to_uppercase().replace('-', "_"));
    let found = Outcome::from_str_name(&name).filter(|outcome| *outcome != Outcome::Unspecified);
    found.ok_or_else(|| {
        let known = OUTCOMES.map(|outcome| text::value(outcome.as_str_name()).to_lowercase());
        format!("must be one of {}", known.join(", ").replace('_', "-"))
    })
}

/// Directions by their names in the API without the prefix, in lower case.
fn directions<const N: usize>(names: [&'static str; N]) -> impl TypedValueParser<Value = Direction> {
    PossibleValuesParser::new(names).try_map(|name| {
        let direction = Direction::from_str_name(&format!("DIRECTION_{}", name.to_uppercase()));
        direction.ok_or("the API has no such direction")
    })
}

/// Reads the command line.
///
/// # Errors
/// clap's: help, version, or what is wrong.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut arguments = arguments.into_iter().peekable();
    let called_as = arguments.peek().map(PathBuf::from).unwrap_or_default();
    let mut command = command(&called_as);
    let matches = command.try_get_matches_from_mut(arguments)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    match cli.connect.conflict() {
        None => Ok(cli),
        Some((one, other)) => {
            let why = format!("the argument '{one}' cannot be used with '{other}'");
            Err(command.error(ErrorKind::ArgumentConflict, why))
        }
    }
}

/// The command line of a program whose file is `called_as`: kubectl finds `kubectl-watchdog`.
pub(crate) fn command(called_as: &Path) -> clap::Command {
    let command = Cli::command().mut_args(in_the_environment);
    match called_as.file_stem().and_then(|name| name.to_str()) {
        Some("kubectl-watchdog") => command.bin_name("kubectl watchdog"),
        _ => command,
    }
}

/// An option stands before or after the command; one of the connection also in the environment.
fn in_the_environment(arg: Arg) -> Arg {
    let variable = format!("WATCHDOG_{}", arg.get_id().as_str().to_uppercase());
    let arg = arg.global(true);
    // kube reads KUBECONFIG.
    if arg.get_help_heading() == Some(CONNECTION) && variable != "WATCHDOG_KUBECONFIG" {
        arg.env(OsStr::from(variable))
    } else {
        arg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, String> {
        parse(line.split(' ').map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_sound() {
        command(Path::new("watchdogctl")).debug_assert();
    }

    /// clap takes two arguments with one identifier for the same, so that a shoot became the name of the release.
    #[test]
    fn no_argument_of_a_command_has_the_identifier_of_a_global_one() {
        let command = command(Path::new("watchdogctl"));
        for part in command.get_subcommands() {
            for argument in part.get_arguments() {
                let id = argument.get_id();
                let global = command.get_arguments().any(|other| other.get_id() == id);
                assert!(!global, "{} {id}", part.get_name());
            }
        }
        let cli = parsed("x shoot core/crazy --name other").unwrap();
        assert_eq!(cli.connect.name.as_deref(), Some("other"));
    }

    #[test]
    fn options_of_the_connection_can_stand_in_the_environment() {
        let command = command(Path::new("watchdogctl"));
        for (id, variable) in [
            ("lease_probe", Some("WATCHDOG_LEASE_PROBE")),
            ("insecure_plaintext", Some("WATCHDOG_INSECURE_PLAINTEXT")),
            // kube reads KUBECONFIG.
            ("kubeconfig", None),
            ("output", None),
        ] {
            let option = command
                .get_arguments()
                .find(|option| option.get_id() == id)
                .unwrap();
            assert_eq!(option.get_env().and_then(|name| name.to_str()), variable, "{id}");
        }
    }

    #[test]
    fn shoots_are_named_by_their_namespace_or_by_project_and_name() {
        assert_eq!(shoot_name("shoot--core--crazy").unwrap(), "shoot--core--crazy");
        assert_eq!(shoot_name("core/crazy").unwrap(), "shoot--core--crazy");
        for bad in ["", "Core/crazy", "a_b", "-a"] {
            assert!(shoot_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn outcomes_are_named_as_in_the_api_without_their_prefix() {
        for text in ["leases-expired", "LEASES_EXPIRED"] {
            assert_eq!(outcome(text).unwrap(), Outcome::LeasesExpired);
        }
        let error = outcome("unspecified").unwrap_err();
        assert!(error.contains("api-server-unreachable"), "{error}");
    }

    #[test]
    fn the_usage_line_names_the_program_as_it_was_called() {
        let usage = |file: &str| parsed(&format!("{file} nonsense")).unwrap_err();
        assert!(usage("/usr/bin/watchdogctl").contains("Usage: watchdogctl"));
        assert!(usage("/usr/bin/kubectl-watchdog").contains("Usage: kubectl watchdog"));
    }

    #[test]
    fn transport_options_exclude_or_need_each_other() {
        for (line, part) in [
            ("x --tls-cert a --tls-key b status", "--tls-ca"),
            ("x --insecure-plaintext --tls-secret a status", "--tls-secret"),
            ("x --insecure-plaintext --tls-ca a status", "--tls-ca"),
            ("x --contexts a --context b status", "--context"),
            ("x --contexts a --lease-probe b:1 status", "addresses of programs"),
            ("x --all-contexts --contexts a status", "--contexts"),
            ("x --all-contexts --context a status", "--context"),
            ("x plan shoot--a--b", "--direction"),
            ("x status --limit 0", "1..=1000"),
            (
                "x --lease-probe nonsense",
                "write a host and a port, for example localhost:9645",
            ),
            ("x --weeder a:1,b:99999 status", "write a host and a port"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        let cli = parsed("x status -w --lease-probe a:1 --lease-probe b:2 -n other").unwrap();
        assert_eq!(cli.connect.lease_probe, ["a:1", "b:2"]);
        assert_eq!(cli.connect.namespace.as_deref(), Some("other"));
        let cli = parsed("x check --contexts a,b -o json").unwrap();
        assert_eq!(cli.connect.contexts, ["a", "b"]);
        assert_eq!(cli.output, Format::Json);
    }
}
