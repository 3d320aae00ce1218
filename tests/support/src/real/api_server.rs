//! A real kube-apiserver that a test can stop and start again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use kube::Client;
use parking_lot::Mutex;

use super::crds::install_endpoint_slices;
use super::etcd::Etcd;
use super::pki::Pki;
use super::{Assets, is_well, kubeconfig};
use crate::history::{AuditFile, Write};
use crate::ports::{free_port, start_on_free_ports};
use crate::process::{ChildProcess, Command};
use crate::sandboxed;
use crate::scratch::Scratch;

/// The user of [`KubeApiserver::client`]: in the group that may do everything.
const ADMIN: &str = "admin";

/// Settings that an API server that serves nodes, their Leases and a kube-controller-manager's node lifecycle does not
/// need: most groups, and the admission plugins that wait for them. An idle one takes a third less processor time
/// without, and starts in half of it: it holds a connection to etcd and a cache for each kind.
const LEAN: [&str; 2] = [
    "--enable-priority-and-fairness=false",
    // Given more than once, this flag adds up.
    "--disable-admission-plugins=Priority,DefaultStorageClass,PersistentVolumeClaimResize,RuntimeClass,\
     DefaultIngressClass,MutatingAdmissionWebhook,ValidatingAdmissionWebhook",
];

/// The groups of a lean API server.
const LEAN_GROUPS: &str = "api/all=false,api/v1=true,apps/v1=true,coordination.k8s.io/v1=true,\
     rbac.authorization.k8s.io/v1=true,authentication.k8s.io/v1=true,authorization.k8s.io/v1=true,\
     apiextensions.k8s.io/v1=true,apiregistration.k8s.io/v1=true,scheduling.k8s.io/v1=true,events.k8s.io/v1=true";

/// Newer API servers do not get ready without these: they keep their own Service, IPAddress, ServiceCIDR and admission
/// policies there.
const SELF_HOSTED_GROUPS: &str =
    "discovery.k8s.io/v1=true,networking.k8s.io/v1=true,admissionregistration.k8s.io/v1=true";

/// The first minor version that knows all of [`SELF_HOSTED_GROUPS`]; one that does not know a group ends at once.
const WITH_SELF_HOSTED_GROUPS: u32 = 21;

/// How to start an API server.
#[derive(Clone, Debug)]
pub struct ApiServerOptions {
    name: String,
    users: Vec<(String, Vec<String>)>,
    flags: Vec<String>,
    audited: Vec<String>,
    lean: bool,
    endpoint_slices: bool,
}

impl ApiServerOptions {
    /// `name` tells the API servers on one etcd apart (letters, digits, dashes).
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            users: Vec::new(),
            flags: Vec::new(),
            audited: Vec::new(),
            lean: false,
            endpoint_slices: false,
        }
    }

    /// Serves only what nodes, their Leases, RBAC and a kube-controller-manager's node lifecycle need: for tests with
    /// many API servers.
    pub const fn lean(mut self) -> Self {
        self.lean = true;
        self
    }

    /// Serves `discovery.k8s.io/v1` also where the server itself has only v1beta1: as a custom resource.
    pub const fn endpoint_slices(mut self) -> Self {
        self.endpoint_slices = true;
        self
    }

    /// Adds a user with a token of its own, without any right until RBAC gives it some.
    pub fn user(mut self, name: &str, groups: &[&str]) -> Self {
        self.users.push((
            name.to_owned(),
            groups.iter().map(|group| (*group).to_owned()).collect(),
        ));
        self
    }

    /// Adds users that may do everything, whose writes are recorded for
    /// [`KubeApiserver::audit`].
    pub fn audited(mut self, users: &[&str]) -> Self {
        self.audited.extend(users.iter().map(|user| (*user).to_owned()));
        users
            .iter()
            .fold(self, |options, user| options.user(user, &["system:masters"]))
    }

    /// Adds a flag to the command line, for example `--max-requests-inflight=5`.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }
}

/// A kube-apiserver with RBAC. Killed when dropped.
#[must_use = "the API server stops when this is dropped"]
pub struct KubeApiserver {
    name: String,
    url: String,
    ca_pem: String,
    tokens: BTreeMap<String, String>,
    client: Client,
    scratch: Arc<Scratch>,
    command: Command,
    process: Mutex<Option<Arc<ChildProcess>>>,
    audit: Mutex<AuditFile>,
}

// === impl KubeApiserver ===

impl KubeApiserver {
    pub(super) async fn start(
        assets: &Assets,
        pki: &Pki,
        etcd: &Etcd,
        scratch: &Arc<Scratch>,
        mut options: ApiServerOptions,
    ) -> anyhow::Result<Self> {
        if options.lean {
            options.flags.extend(lean_flags(assets.api_server_minor()?));
        }
        let lacks_slices = options.endpoint_slices && assets.api_server_minor()? < WITH_SELF_HOSTED_GROUPS;
        if lacks_slices {
            let off = "--runtime-config=discovery.k8s.io/v1beta1=false";
            options.flags.push(off.to_owned());
        }
        if !options.audited.is_empty() {
            let name = &options.name;
            let policy = audit_policy(&options.audited);
            let policy = scratch.write(&format!("{name}-audit-policy.yaml"), policy)?;
            let log = audit_log(scratch, name);
            options.flags.extend([
                format!("--audit-policy-file={}", policy.display()),
                format!("--audit-log-path={}", log.display()),
            ]);
        }
        options
            .users
            .push((ADMIN.to_owned(), vec!["system:masters".to_owned()]));
        let tokens: BTreeMap<_, _> = options
            .users
            .iter()
            .map(|(user, _)| (user.clone(), random_token()))
            .collect();
        let token_file = scratch.write(
            &format!("{}-tokens.csv", options.name),
            token_file(&options, &tokens),
        )?;
        let token_file = token_file.display().to_string();
        let admin = tokens.get(ADMIN).context("no administrator")?;
        let start = || async {
            let port = free_port()?;
            let url = format!("https://127.0.0.1:{port}");
            let client = sandboxed::client(&kubeconfig(&url, &pki.ca_pem, ADMIN, admin)).await?;
            let server = Self {
                name: options.name.clone(),
                url,
                ca_pem: pki.ca_pem.clone(),
                tokens: tokens.clone(),
                client,
                scratch: Arc::clone(scratch),
                command: command(assets, pki, etcd, &options, port, &token_file, scratch),
                process: Mutex::new(None),
                audit: Mutex::new(AuditFile::new(audit_log(scratch, &options.name))),
            };
            server.start_again().await?;
            Ok(server)
        };
        let server = start_on_free_ports(start).await?;
        if lacks_slices {
            Box::pin(install_endpoint_slices(&server.client)).await?;
        }
        Ok(server)
    }

    /// The name it was started with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL, the same after it was stopped and started again.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate of the authority that signed its certificate.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A client that may do everything.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The kubeconfig of a user named in the options, or of "admin".
    pub fn kubeconfig_for(&self, user: &str) -> anyhow::Result<String> {
        let token = self.tokens.get(user);
        let token =
            token.with_context(|| format!("{:?} was started without the user {user:?}", self.name))?;
        Ok(kubeconfig(&self.url, &self.ca_pem, user, token))
    }

    /// The writes so far of the users that are audited.
    pub fn audit(&self) -> anyhow::Result<Vec<Write>> {
        self.audit.lock().writes().map(<[Write]>::to_vec)
    }

    /// Kills it. Connections to it are refused from then on. Does nothing when it is stopped.
    pub async fn stop(&self) -> anyhow::Result<()> {
        let process = self.process.lock().take();
        if let Some(process) = process {
            process.kill_9().await?;
        }
        Ok(())
    }

    /// Starts it on the same address with the same data and waits until it is ready. Does nothing when it runs.
    pub async fn start_again(&self) -> anyhow::Result<()> {
        if self.process.lock().is_some() {
            return Ok(());
        }
        let process = Arc::new(self.command.spawn(&self.scratch)?);
        *self.process.lock() = Some(Arc::clone(&process));
        let ready = process.wait_until("it is ready", || is_well(&self.client, "/readyz"));
        let ready = ready.await;
        if ready.is_err() {
            self.stop().await?;
        }
        ready
    }
}

fn audit_log(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.join(format!("{name}-audit.log"))
}

/// Their writes, those to Deployments and Leases with their bodies. Events and reviews are not recorded.
fn audit_policy(users: &[String]) -> String {
    let users = users.join(", ");
    format!(
        "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - resources: [events]
  - group: events.k8s.io
  - group: authorization.k8s.io
- level: Request
  users: [{users}]
  resources:
  - group: apps
    resources: [deployments, deployments/scale]
  - group: coordination.k8s.io
    resources: [leases]
- level: Metadata
  users: [{users}]
- level: None
"
    )
}

fn lean_flags(minor: u32) -> Vec<String> {
    let mut groups = format!("--runtime-config={LEAN_GROUPS}");
    if minor >= WITH_SELF_HOSTED_GROUPS {
        groups = format!("{groups},{SELF_HOSTED_GROUPS}");
    }
    LEAN.into_iter().map(str::to_owned).chain([groups]).collect()
}

fn command(
    assets: &Assets,
    pki: &Pki,
    etcd: &Etcd,
    options: &ApiServerOptions,
    port: u16,
    token_file: &str,
    scratch: &Scratch,
) -> Command {
    let name = &options.name;
    Command::new(format!("kube-apiserver-{name}"), &assets.kube_apiserver)
        .arg(format!("--etcd-servers={}", etcd.url))
        .arg(format!("--etcd-prefix=/{name}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg(format!("--secure-port={port}"))
        .arg(format!(
            "--cert-dir={}",
            scratch.join(format!("{name}-certs")).display()
        ))
        .arg(format!("--tls-cert-file={}", pki.serving_cert.display()))
        .arg(format!("--tls-private-key-file={}", pki.serving_key.display()))
        .arg(format!("--service-account-issuer=https://{name}.test"))
        .arg(format!(
            "--service-account-signing-key-file={}",
            pki.service_account_private.display()
        ))
        .arg(format!(
            "--service-account-key-file={}",
            pki.service_account_public.display()
        ))
        .arg(format!("--token-auth-file={token_file}"))
        .args([
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
        ])
        // A loopback address is refused in the Endpoints of the service "kubernetes", which nobody here uses.
        .arg("--endpoint-reconciler-type=none")
        // No controller makes the default service accounts that this plugin asks of every pod.
        .arg("--disable-admission-plugins=ServiceAccount")
        .args(options.flags.iter().cloned())
}

/// Lines of `token,user,uid,"group1,group2"`.
fn token_file(options: &ApiServerOptions, tokens: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (user, groups) in &options.users {
        if let Some(token) = tokens.get(user) {
            let _ = writeln!(text, "{token},{user},{user},\"{}\"", groups.join(","));
        }
    }
    text
}

fn random_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}
