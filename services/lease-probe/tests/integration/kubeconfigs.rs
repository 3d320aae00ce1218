//! Kubeconfigs that a Secret may hold, used over real TLS, and one that is refused; nothing secret is shown. All fields
//! that are refused stand in the unit tests of `watchdog-api`.

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::in_process::CapturedOutput;
use watchdog_test_support::simulation::SimulatedShoot;

use crate::eventually;
use crate::fixture::{Fixture, real};
use crate::replica::Replica;

/// Secrets that no log, metric or message may show.
const SECRET: &str = "hunter2-hunter2";

/// A kubeconfig of one cluster, user and context that works, with a token.
fn plain(shoot: &SimulatedShoot) -> Value {
    let api = shoot.api();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {
            "server": api.url(),
            "certificate-authority-data": ByteString(api.ca_pem().as_bytes().to_vec()),
        }}],
        "users": [{"name": "u", "user": {"token": api.token("by-token")}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    })
}

fn edited(shoot: &SimulatedShoot, pointer: &str, value: Value) -> Value {
    let mut config = plain(shoot);
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[field] = value;
    config
}

/// The user of a kubeconfig with a client certificate, as JSON.
fn certificate(shoot: &SimulatedShoot, user: &str) -> Value {
    let text = shoot.api().kubeconfig_with_certificate(user).unwrap();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        line.rsplit(' ').next().unwrap().to_owned()
    };
    json!({
        "client-certificate-data": field("client-certificate-data"),
        "client-key-data": field("client-key-data"),
    })
}

/// The shoots, each with a kubeconfig that works, and the user that it makes the probe.
fn used(fixture: &Fixture) -> Vec<(&'static str, Value, &'static str)> {
    let shoot = |name: &str| fixture.shoot(name);
    let user = |name: &str, value| edited(&shoot(name), "/users/0/user", value);
    let with =
        |name: &str, field: &str, value| edited(&shoot(name), &format!("/clusters/0/cluster/{field}"), value);
    let under_a_path = {
        let shoot = shoot("path");
        shoot.api().set_path_prefix("/shoots/one");
        edited(
            &shoot,
            "/clusters/0/cluster/server",
            json!(format!("{}/shoots/one/", shoot.api().url())),
        )
    };
    vec![
        ("token", plain(&shoot("token")), "by-token"),
        (
            "certificate",
            user(
                "certificate",
                certificate(&shoot("certificate"), "by-certificate"),
            ),
            "by-certificate",
        ),
        ("path", under_a_path, "by-token"),
        (
            "named",
            with("named", "tls-server-name", json!("kubernetes")),
            "by-token",
        ),
    ]
}

const SHOOTS: [&str; 5] = ["token", "certificate", "path", "named", "refused"];

#[tokio::test]
async fn a_kubeconfig_is_used_or_refused_as_documented() {
    let log = CapturedOutput::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    let fixture = Fixture::new(real(), 1, &SHOOTS).await;
    let used = used(&fixture);
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": SECRET}});
    let refused = edited(&fixture.shoot("refused"), "/users/0/user", exec);
    let mut all: Vec<_> = used.iter().map(|(name, config, _)| (*name, config)).collect();
    all.push(("refused", &refused));
    assert_eq!(all.len(), SHOOTS.len());
    for (name, kubeconfig) in &all {
        fixture.set_kubeconfig(&fixture.shoot(name), PROBE_SECRET, &kubeconfig.to_string());
    }
    let replica = Replica::start(&fixture).await;
    for (name, _, user) in &used {
        let shoot = fixture.shoot(name);
        replica.until_outcome(&shoot, Outcome::Healthy).await;
        let users: Vec<String> = shoot.api().audit().into_iter().map(|entry| entry.user).collect();
        let as_user = !users.is_empty() && users.iter().all(|found| found == user);
        assert!(as_user, "{name}: {users:?}");
    }
    let why = "users[0].user.exec: is not supported: programs are not run";
    let refused = fixture.shoot("refused");
    let verdict = replica.until_said(&refused, Outcome::Inconclusive, why).await;
    eventually("the log also names what is refused", || log.text().contains(why)).await;
    let (_, metrics) = replica.admin_get("/metrics").await.unwrap();
    for (text, what) in [
        (&log.text(), "log"),
        (&metrics, "metrics"),
        (&verdict.message, "verdict"),
    ] {
        assert!(!text.contains(SECRET), "the {what} shows a secret");
        for (name, kubeconfig) in &all {
            let user = kubeconfig["users"].as_array().unwrap().last().unwrap()["user"].clone();
            for field in ["token", "client-key-data"] {
                let value = user[field].as_str().unwrap_or(SECRET);
                assert!(!text.contains(value), "the {what} shows the {field} of {name}");
            }
        }
    }
}
