//! The command line that all services share.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::ensure;
use clap::{ArgGroup, Args, ValueEnum};
use watchdog_api::config::UnknownFields;

use crate::config_file::{ConfigFile, Parse};
use crate::tls::PemFiles;

/// The services of the watchdog.
const PROGRAMS: [&str; 3] = ["lease-probe", "scaling-coordinator", "weeder"];

/// Stands in the name of the observer's certificate where a program's name stands in its own.
const OBSERVER: &str = "observer";

/// Format of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Options of every service. A service flattens them into its own parser.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("transport")
    .required(true)
    .multiple(true)
    .args(["tls_cert", "tls_authority", "insecure_plaintext", "check_config"]))]
pub struct CommonArgs {
    /// Configuration file (YAML). Reloaded when it changes; an invalid change is rejected and reported.
    #[arg(long, value_name = "FILE")]
    pub config_file: PathBuf,

    /// Ignore fields of the configuration file that this version does not know, with a warning, instead of rejecting
    /// the file. Use this if another program writes the file.
    #[arg(long)]
    pub ignore_unknown_fields: bool,

    /// Kubeconfig of the seed. Default: the file named by KUBECONFIG, otherwise the Pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace in the seed where the replicas keep their Leases.
    #[arg(long, default_value = "garden", value_name = "NAMESPACE")]
    pub namespace: String,

    /// Unique name of this replica, stable for the lifetime of the process. Default: the host name and a random suffix.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,

    /// Address that the gRPC API listens on. [::] means all addresses, including IPv4. Port 0 selects a free port. The
    /// bound address is logged. Other replicas and services reach this one there, with the IP from POD_IP if it is
    /// bound to all addresses.
    #[arg(long, default_value = "[::]:9645", value_name = "IP:PORT")]
    pub grpc_addr: SocketAddr,

    /// Address that serves /metrics, /healthz and /readyz. Port 0 selects a free port. The bound address is logged.
    #[arg(long, default_value = "[::]:9643", value_name = "IP:PORT")]
    pub admin_addr: SocketAddr,

    /// Serve /metrics, /healthz, /readyz and /log-level over TLS, with the certificate of the gRPC API. The kubelet's
    /// probes need no certificate. All other paths need a certificate that may call the gRPC API.
    #[arg(long, conflicts_with = "insecure_plaintext")]
    pub admin_tls: bool,

    /// Secret in the namespace of the membership Leases for the certificate authority (ca.crt, ca.key) from which this
    /// program issues its own certificates. It must exist. All programs of the seed share it; the first one fills it.
    #[arg(long, value_name = "SECRET", conflicts_with = "tls_cert")]
    pub tls_authority: Option<String>,

    /// Secret beside that of --tls-authority for a certificate with which people call the programs (ca.crt, tls.crt,
    /// tls.key). It must exist. All programs of the seed share it, keep it valid, and let its holder call. It is for
    /// clients only, so its holder cannot take the place of a program.
    #[arg(long, value_name = "SECRET", requires = "tls_authority")]
    pub tls_observer: Option<String>,

    /// Certificate chain (PEM) of this service, for its gRPC server and as a client. Reloaded when it changes.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_client_ca"])]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate. Reloaded when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Certificate authorities (PEM) that must have signed the certificates of callers and of the servers that this
    /// service calls. Reloaded when the file changes.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,

    /// DNS name in the certificate of another client that may call this service; repeatable. The services of the
    /// watchdog that are named like the replicas of this program may always call.
    #[arg(long, value_name = "NAME", conflicts_with = "insecure_plaintext", value_parser = dns_name)]
    pub tls_allowed_client: Vec<String>,

    /// DNS name in the certificates of all replicas of this program. The other programs have names like it. Default:
    /// the name of the chart's Service in the namespace.
    #[arg(long, value_name = "NAME", conflicts_with = "insecure_plaintext", value_parser = dns_name)]
    pub tls_peer_server_name: Option<String>,

    /// Serve and call gRPC without TLS. For tests and closed networks only.
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_authority"])]
    pub insecure_plaintext: bool,

    /// Format of the log lines.
    #[arg(long, value_enum, default_value = "json")]
    pub log_format: LogFormat,

    /// Least severe log level: error, warn, info, debug, trace, or a filter such as "info,lease_probe=debug".
    #[arg(long, default_value = "info", value_name = "FILTER")]
    pub log_level: String,

    /// Check the configuration file, print its errors and the fields that are ignored, and exit with 0 if it is valid,
    /// otherwise with 2.
    #[arg(long)]
    pub check_config: bool,
}

impl CommonArgs {
    /// Reads the configuration file. With `--check-config`, prints which of its fields are ignored.
    ///
    /// # Errors
    /// When it cannot be read or is not good: all that is wrong with it, a line each.
    pub fn load_config<C: PartialEq>(&self, parse: Parse<C>) -> anyhow::Result<ConfigFile<C>> {
        let unknown = if self.ignore_unknown_fields {
            UnknownFields::Ignored
        } else {
            UnknownFields::Refused
        };
        let (file, ignored) = ConfigFile::load(self.config_file.clone(), unknown, parse)?;
        if let Some(ignored) = ignored.filter(|_| self.check_config) {
            // Nothing can be done when the output is closed.
            let _ = writeln!(std::io::stderr(), "these unknown fields are ignored:\n{ignored}");
        }
        Ok(file)
    }

    /// The TLS files, or none with `--tls-authority` or `--insecure-plaintext`. The parser guarantees that all three or
    /// none are given.
    #[must_use]
    pub fn tls_files(&self) -> Option<PemFiles> {
        Some(PemFiles {
            cert: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            ca: self.tls_client_ca.clone()?,
        })
    }

    /// DNS name in the certificates of all replicas of `service`. If the name of the other replicas of this program is
    /// given and begins as `prefix-weeder.` does, one like it; if that names no program, the same one.
    #[must_use]
    pub fn server_name(&self, service: &str) -> String {
        let given = || self.tls_peer_server_name.clone().unwrap_or_default();
        self.named_like_peers(service).unwrap_or_else(given)
    }

    /// DNS names of the services of the watchdog, which may call this one.
    #[must_use]
    pub fn own_server_names(&self) -> Vec<String> {
        PROGRAMS.map(|program| self.server_name(program)).into()
    }

    /// DNS name in the certificate of `--tls-observer`; none without that option.
    #[must_use]
    pub fn observer_name(&self) -> Option<String> {
        self.tls_observer.as_ref()?;
        let like_peers = self.named_like_peers(OBSERVER);
        Some(like_peers.unwrap_or_else(|| self.service_name(OBSERVER)))
    }

    /// DNS name like that of the other replicas, with `role` in place of the program; none if theirs names no program.
    fn named_like_peers(&self, role: &str) -> Option<String> {
        let Some(given) = &self.tls_peer_server_name else {
            return Some(self.service_name(role));
        };
        let (label, domain) = given.split_at(given.find('.').unwrap_or(given.len()));
        let prefix = PROGRAMS.iter().find_map(|program| label.strip_suffix(program))?;
        Some(format!("{prefix}{role}{domain}"))
    }

    /// DNS name of a service as the chart names it, if it runs in the namespace of the membership Leases.
    fn service_name(&self, service: &str) -> String {
        format!("watchdog-{service}.{}.svc", self.namespace)
    }

    /// Name of this replica, made up where none was given.
    #[must_use]
    pub fn identity_or_random(&self) -> String {
        self.identity.clone().unwrap_or_else(|| {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            identity(&host, rand::random())
        })
    }
}

/// The gRPC address at which other replicas and services reach this one: the one bound, with the IP from `POD_IP` if it
/// is bound to all addresses.
#[must_use]
pub fn advertised(bound: SocketAddr) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let ip = std::env::var("POD_IP").ok().and_then(|ip| ip.parse().ok());
    let loopback = IpAddr::from([127, 0, 0, 1]);
    SocketAddr::new(ip.unwrap_or(loopback), bound.port())
}

/// The name of a replica on this host, which is its Pod. Linux allows a host name 64 characters.
fn identity(host: &str, suffix: u32) -> String {
    let host: String = host
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    let host = if host.is_empty() { "replica" } else { &host };
    format!("{}-{suffix:08x}", host.to_ascii_lowercase())
}

/// Checks a DNS name. Wildcards are refused: a caller is named in full.
fn dns_name(text: &str) -> anyhow::Result<String> {
    let name = rustls::pki_types::DnsName::try_from(text);
    ensure!(
        name.is_ok(),
        "is not a DNS name in full, such as client.garden.svc"
    );
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_one_deployment_keep_what_distinguishes_them() {
        let pods = ["2x4z9", "2x4zb"].map(|pod| format!("dependency-watchdog-prober-5d9c7f8b6d-{pod}"));
        for pod in &pods {
            assert_eq!(identity(&format!("{pod}\n"), 7), format!("{pod}-00000007"));
        }
        assert_eq!(identity("\u{e9}", 7), "replica-00000007");
        assert_ne!(
            identity(&pods[0], 7),
            identity(&pods[0], 8),
            "two processes of one Pod"
        );
    }

    #[test]
    fn names_of_callers_are_names_in_full() {
        for good in ["client", "watchdog-scaling-coordinator.garden.svc"] {
            assert!(dns_name(good).is_ok(), "{good}");
        }
        for bad in ["", "*.garden.svc", "a b", "https://a"] {
            assert!(dns_name(bad).is_err(), "{bad}");
        }
    }
}
