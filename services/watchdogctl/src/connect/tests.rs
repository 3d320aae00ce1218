//! How the programs are reached: with which certificates, and through a port-forward.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1::Outcome;

use super::ProgramDialer;
use crate::program::Program;
use crate::render::testing::verdict;
use crate::testing::pod_api::{PodApi, SECRET};
use crate::testing::stub_services::{Answers, StubServer, StubServices};
use crate::testing::tls::TestAuthority;
use crate::testing::{assert_parts, fails, run, shown};

const SHOOT: &str = "shoot--a--b";

/// The name in a certificate of lease-probe, as the chart calls it.
const LEASE_PROBE: &str = "watchdog-lease-probe.garden.svc";

async fn serve(authority: &TestAuthority) -> StubServer {
    let services = StubServices::new(Answers {
        verdicts: vec![verdict(SHOOT, Outcome::Healthy)],
        ..Answers::default()
    });
    services.serve_tls(authority.server(&[LEASE_PROBE])).await
}

#[tokio::test]
async fn certificates_of_files_are_used_and_shown_by_check() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let address = format!("--lease-probe {}", server.address);
    let issued = format!(
        "--tls-ca {} --tls-ca-key {}",
        authority.path("ca.crt").display(),
        authority.path("ca.key").display()
    );
    for tls in [authority.options(), issued] {
        assert_parts(&shown(&format!("{address} {tls} verdicts")).await, &[SHOOT]);
        let checked = shown(&format!("{address} {tls} check")).await;
        for subject in [server.address.as_str(), "your certificate"] {
            let found = checked
                .lines()
                .any(|line| line.contains(subject) && line.contains("certificate   ends "));
            assert!(found, "{subject}: {checked}");
        }
    }
}

#[tokio::test]
async fn a_certificate_that_does_not_fit_is_an_error_that_says_which_option() {
    let (authority, stranger) = (TestAuthority::new(), TestAuthority::new());
    let server = serve(&authority).await;
    let address = format!("--lease-probe {}", server.address);
    let [ca, cert, key] =
        ["ca.crt", "tls.crt", "tls.key"].map(|name| authority.path(name).display().to_string());
    let foreign_key = stranger.path("tls.key").display().to_string();
    let foreign_cert = stranger.path("tls.crt").display().to_string();
    let foreign_ca_key = stranger.path("ca.key").display().to_string();
    for (tls, code, part) in [
        (
            format!("{} --tls-server-name other.test", authority.options()),
            3,
            "set --tls-server-name to a name in it",
        ),
        (stranger.options(), 3, "--tls-ca must have signed"),
        // The program's certificate is trusted, but not the caller's by the program.
        (
            format!("--tls-ca {ca} --tls-cert {foreign_cert} --tls-key {foreign_key}"),
            3,
            "--tls-ca must have signed",
        ),
        ("--insecure-plaintext".to_owned(), 3, "--tls-ca"),
        (
            format!("--tls-ca {ca} --tls-cert {cert} --tls-key {foreign_key}"),
            2,
            "correct --tls-ca, --tls-cert, --tls-key",
        ),
        (
            format!("--tls-ca /no/such/file --tls-cert {cert} --tls-key {key}"),
            2,
            "/no/such/file",
        ),
        (
            format!("--tls-ca {ca} --tls-ca-key /no/such/file"),
            2,
            "correct --tls-ca and --tls-ca-key",
        ),
        (
            format!("--tls-ca {ca} --tls-ca-key {foreign_ca_key}"),
            2,
            "correct it, or use another certificate",
        ),
    ] {
        fails(&format!("{address} {tls} verdicts"), code, part).await;
    }
}

#[tokio::test]
async fn certificate_writes_files_with_which_a_program_can_be_called() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let folder = TempDir::new().unwrap();
    let path = folder.path().display();
    let ca = authority.path("ca.crt").display().to_string();
    let named = format!(
        "--tls-ca {ca} --tls-ca-key {}",
        authority.path("ca.key").display()
    );
    let text = shown(&format!("{named} certificate {path}")).await;
    assert_parts(
        &text,
        &["valid for 24 h", LEASE_PROBE, "watchdog-weeder.garden.svc"],
    );
    let tls = format!("--tls-ca {path}/ca.crt --tls-cert {path}/tls.crt --tls-key {path}/tls.key");
    let verdicts = shown(&format!("--lease-probe {} {tls} verdicts", server.address)).await;
    assert_parts(&verdicts, &[SHOOT]);
    let text = shown(&format!("{named} certificate {path} --dns-name me.test")).await;
    assert!(text.ends_with("for me.test\n"), "{text}");
    for (line, part) in [
        (
            format!("{named} certificate /no/such/folder"),
            "name another folder",
        ),
        (
            format!("--tls-ca {ca} certificate {path}"),
            "add --tls-secret watchdog-leases/watchdog-authority, or",
        ),
    ] {
        fails(&line, 2, part).await;
    }
}

/// A seed with a pod of lease-probe, a pod of weeder in which nothing listens, and a Secret of these files.
struct Seed {
    kubeconfig: PathBuf,
    folder: TempDir,
    /// Bound, so that no other program gets the port, and never listening.
    _closed: TcpSocket,
    _server: AbortOnDropHandle<()>,
}

impl Seed {
    async fn start(authority: &TestAuthority, server: &StubServer, keys: &[&str]) -> Self {
        let closed = TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let free = closed.local_addr().unwrap().to_string();
        let data = keys
            .iter()
            .map(|key| ((*key).to_owned(), ByteString(authority.read(key))));
        let api = PodApi {
            pods: BTreeMap::from([
                ("lease-probe".to_owned(), server.address.clone()),
                ("weeder".to_owned(), free),
            ]),
            secret: Secret {
                data: Some(data.collect()),
                ..Secret::default()
            },
            token: None,
        };
        let (kubeconfig, server) = api.serve().await;
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("seed.kubeconfig");
        std::fs::write(&path, kubeconfig).unwrap();
        Self {
            kubeconfig: path,
            folder,
            _closed: closed,
            _server: server,
        }
    }

    fn options(&self) -> String {
        format!("--context seed --kubeconfig {}", self.kubeconfig.display())
    }
}

#[tokio::test]
async fn a_port_is_forwarded_to_a_ready_pod_with_the_certificate_of_a_secret() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    for keys in [&["ca.crt", "tls.crt", "tls.key"][..], &["ca.crt", "ca.key"]] {
        let seed = Seed::start(&authority, &server, keys).await;
        let options = format!("{} --tls-secret {SECRET}", seed.options());
        for name in ["", "--tls-secret garden/"] {
            let options = match name {
                "" => options.clone(),
                _ => format!("{} {name}{SECRET}", seed.options()),
            };
            assert_parts(&shown(&format!("{options} verdicts")).await, &[SHOOT]);
        }
        // With an address, only the Secret comes from the seed.
        let direct = format!("{options} --lease-probe {}", server.address);
        assert_parts(&shown(&format!("{direct} verdicts")).await, &[SHOOT]);
        let checked = run(&format!("{options} check")).await;
        assert_eq!(checked.code, ExitCode::from(1), "{}", checked.text);
        assert_parts(
            &checked.text,
            &[
                "lease-probe lease-probe-0",
                "no ready pod of scaling-coordinator",
                "connection refused in the pod",
            ],
        );
        if keys.contains(&"ca.key") {
            let path = seed.folder.path().display();
            shown(&format!("{options} certificate {path}")).await;
            assert_eq!(
                std::fs::read(seed.folder.path().join("ca.crt")).unwrap(),
                authority.read("ca.crt")
            );
        }
    }
}

#[tokio::test]
async fn an_error_of_the_seed_says_what_to_do() {
    let authority = TestAuthority::new();
    let server = serve(&authority).await;
    let seed = Seed::start(&authority, &server, &["ca.crt", "tls.crt"]).await;
    let complete = Seed::start(&authority, &server, &["ca.crt", "tls.crt", "tls.key"]).await;
    let broken = Seed::start(&authority, &server, &[]).await;
    let (of_seed, of_complete) = (seed.options(), complete.options());
    let kubeconfig = std::fs::read_to_string(&broken.kubeconfig).unwrap();
    let address = kubeconfig
        .split("http://")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    std::fs::write(&broken.kubeconfig, kubeconfig.replace(address, "127.0.0.1:1")).unwrap();
    for (line, code, part) in [
        (
            format!("{of_complete} --tls-secret {SECRET} scaling"),
            3,
            "no ready pod of scaling-coordinator in namespace garden",
        ),
        (
            format!("{of_complete} --tls-secret {SECRET} weeders"),
            3,
            "connection refused in the pod",
        ),
        (
            format!("{of_seed} --tls-secret other verdicts"),
            2,
            "user me cannot get",
        ),
        (
            format!("{of_complete} --tls-secret garden/{SECRET} -n kube-system verdicts"),
            2,
            "user me cannot get",
        ),
        (
            format!("{of_seed} --tls-secret {SECRET} verdicts"),
            2,
            "name a Secret with ca.crt and ca.key, or with",
        ),
        (
            format!("{} --tls-secret {SECRET} verdicts", broken.options()),
            3,
            "check --kubeconfig, --context and the connection",
        ),
        (
            "--kubeconfig /no/such/kubeconfig verdicts".to_owned(),
            2,
            "set --kubeconfig and --context",
        ),
        (
            format!("--kubeconfig {} verdicts", seed.kubeconfig.display()),
            2,
            "cannot reach the seed: the kubeconfig of --kubeconfig cannot be used",
        ),
    ] {
        fails(&line, code, part).await;
    }
}

/// A command that watches lives longer than credentials do. Its plugin runs again after a refusal.
#[tokio::test]
async fn a_command_that_goes_on_gets_new_credentials() {
    let accepted = Arc::new(Mutex::new("first".to_owned()));
    let api = PodApi {
        pods: BTreeMap::from([("lease-probe".to_owned(), "127.0.0.1:1".to_owned())]),
        secret: Secret::default(),
        token: Some(accepted.clone()),
    };
    let (kubeconfig, _server) = api.serve().await;
    let folder = TempDir::new().unwrap();
    let issued = folder.path().join("token");
    std::fs::write(&issued, "first").unwrap();
    let script = format!(
        "printf '{{\"status\": {{\"token\": \"%s\"}}}}' $(cat {})",
        issued.display()
    );
    let user = serde_json::json!({"exec": {"command": "/bin/sh", "args": ["-c", script]}});
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig.replace("user: {}", &format!("user: {user}"))).unwrap();
    let line = format!(
        "watchdogctl --context seed --kubeconfig {} --insecure-plaintext verdicts",
        path.display()
    );
    let cli = crate::args::parse(line.split(' ').map(Into::into)).unwrap();
    let dialer = ProgramDialer::open(&cli.connect).await.unwrap();
    let pods = || dialer.replicas(Program::LeaseProbe);
    assert_eq!(pods().await.unwrap()[0].name, "lease-probe-0");
    // As those of 15 minutes do, the first ones have ended.
    *accepted.lock().unwrap() = "second".to_owned();
    std::fs::write(&issued, "second").unwrap();
    let refused = pods().await.unwrap_err();
    assert!(refused.to_string().contains("cannot list pods"), "{refused}");
    assert_eq!(pods().await.unwrap()[0].name, "lease-probe-0");
    // The error of a plugin that fails is about the plugin.
    *accepted.lock().unwrap() = "third".to_owned();
    std::fs::write(&issued, "no token").unwrap();
    pods().await.unwrap_err();
    let failed = pods().await.unwrap_err().to_string();
    let about = "the answer of the exec plugin sh cannot be used: its output is not an ExecCredential";
    assert!(failed.contains(about), "{failed}");
}
