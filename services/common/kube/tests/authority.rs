//! Programs that issue their own certificates from the authority that they share.

#![cfg(test)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, GeneralSubtree, IsCa, KeyPair, NameConstraints,
    date_time_ymd,
};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use watchdog_certificates::Authorities;
use watchdog_client::tls::ClientTls;
use watchdog_kube::authority::{CertificateIssuer, ObserverSecret};
use watchdog_runtime::readiness::Readiness;
use watchdog_runtime::tls::Tls;
use watchdog_sandbox::{ApiServer, Fault, FaultAction};
use watchdog_test_support::in_process::{api_server, eventually, eventually_async, until_ready};
use watchdog_test_support::sandboxed::client;

const SECRET: &str = "watchdog-authority";
const OBSERVER: &str = "watchdog-observer";
const OBSERVER_NAME: &str = "watchdog-observer.garden.svc";

/// The time of day of all replicas of a test.
#[derive(Clone)]
struct TestClock(Arc<AtomicI64>);

impl TestClock {
    fn at(text: &str) -> Self {
        let at: Timestamp = text.parse().unwrap();
        Self(Arc::new(AtomicI64::new(at.as_second())))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
    }

    fn advance(&self, by: SignedDuration) {
        self.0.fetch_add(by.as_secs(), Ordering::Relaxed);
    }
}

struct Seed {
    api: ApiServer,
    secrets: Api<Secret>,
    clock: TestClock,
}

impl Seed {
    async fn start() -> Self {
        let api = api_server(&["garden"]).await.unwrap();
        let client = client(&api.kubeconfig("weeder")).await.unwrap();
        let secrets: Api<Secret> = Api::namespaced(client, "garden");
        // As the chart does.
        let empty = serde_json::from_value(json!({"metadata": {"name": SECRET}})).unwrap();
        secrets.create(&PostParams::default(), &empty).await.unwrap();
        // Now, because the handshakes go by the real clock.
        let clock = TestClock::at(&Timestamp::now().to_string());
        Self { api, secrets, clock }
    }

    async fn replica(&self) -> Replica {
        self.replica_with(None).await
    }

    /// Starts this many replicas at once, and waits until each is ready.
    async fn replicas(&self, count: usize) -> Vec<Replica> {
        self.replicas_with(count, None).await
    }

    async fn replicas_with(&self, count: usize, observer: Option<&str>) -> Vec<Replica> {
        let mut replicas = Vec::new();
        for _ in 0..count {
            replicas.push(self.replica_with(observer).await);
        }
        for replica in &replicas {
            replica.ready().await;
        }
        replicas
    }

    /// A replica that keeps a certificate for people in this Secret.
    async fn replica_with(&self, observer: Option<&str>) -> Replica {
        let (tls, readiness, stop) = (
            Tls::without_certificate(),
            Readiness::default(),
            CancellationToken::new(),
        );
        let clock = self.clock.clone();
        let issuer = CertificateIssuer {
            client: client(&self.api.kubeconfig("weeder")).await.unwrap(),
            namespace: "garden".to_owned(),
            secret: SECRET.to_owned(),
            names: vec!["watchdog-weeder.garden.svc".to_owned()],
            tls: tls.clone(),
            readiness: readiness.clone(),
            has_certificate: watch::Sender::new(false),
            observer: observer.map(|secret| ObserverSecret {
                secret: secret.to_owned(),
                name: OBSERVER_NAME.to_owned(),
            }),
            clock: Box::new(move || clock.now()),
            look_every: Duration::from_millis(20),
        };
        tokio::spawn(issuer.run(stop.clone()));
        Replica {
            tls,
            readiness,
            _stop: stop.drop_guard(),
        }
    }

    /// Puts this into the Secret, whatever there was.
    async fn put(&self, certificates: &str, keys: &str) {
        let part = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = json!({"ca.crt": part(certificates), "ca.key": part(keys)});
        self.patch(json!({ "data": data })).await;
    }

    async fn patch(&self, patch: serde_json::Value) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.secrets.patch(SECRET, &params, &patch).await.unwrap();
    }

    async fn authorities(&self) -> usize {
        let data = self.secrets.get(SECRET).await.unwrap().data.unwrap_or_default();
        let certificates = data.get("ca.crt").map_or(Vec::new(), |part| part.0.clone());
        let pem = String::from_utf8(certificates).unwrap();
        pem.matches("BEGIN CERTIFICATE").count()
    }
}

struct Replica {
    tls: Tls,
    readiness: Readiness,
    _stop: DropGuard,
}

impl Replica {
    async fn ready(&self) {
        until_ready(&self.readiness, true).await;
    }

    /// Waits until a failure is shown, and returns what /readyz says.
    async fn failure(&self) -> String {
        eventually("a failure is shown", || !self.readiness.failures().is_empty()).await;
        self.readiness.lines().join("\n")
    }

    /// Lets the time pass after which a certificate is replaced, and waits for that.
    async fn renews(&self, clock: &TestClock, after: SignedDuration) {
        let before = self.tls.client().current().await;
        clock.advance(after);
        eventually_async("a new certificate", async || {
            !Arc::ptr_eq(&self.tls.client().current().await, &before)
        })
        .await;
    }
}

/// True if one calls the other by mutual TLS.
async fn calls(from: &Replica, to: &Replica) -> bool {
    connects(&from.tls.client(), to).await
}

async fn connects(client: &ClientTls, to: &Replica) -> bool {
    let Some(server) = to.tls.server() else {
        return false;
    };
    let (near, far) = tokio::io::duplex(16 * 1024);
    let name = ServerName::try_from("watchdog-weeder.garden.svc").unwrap();
    let connect = tokio_rustls::TlsConnector::from(client.current().await).connect(name, near);
    let accept = tokio_rustls::TlsAcceptor::from(server).accept(far);
    // A refused client certificate is known to the server only.
    let (connected, accepted) = tokio::join!(connect, accept);
    connected.is_ok() && accepted.is_ok()
}

async fn all_call(replicas: &[Replica]) -> bool {
    for from in replicas {
        for to in replicas {
            if !calls(from, to).await {
                return false;
            }
        }
    }
    true
}

#[tokio::test]
async fn replicas_that_start_at_once_agree_on_one_authority() {
    let seed = Seed::start().await;
    let replicas = [seed.replica().await, seed.replica().await, seed.replica().await];
    assert!(
        !calls(&replicas[0], &replicas[0]).await,
        "without a certificate nothing is served"
    );
    for replica in &replicas {
        replica.ready().await;
    }
    eventually_async("all trust each other", async || all_call(&replicas).await).await;
    assert_eq!(seed.authorities().await, 1);
    let other = Seed::start().await;
    let stranger = other.replica().await;
    stranger.ready().await;
    assert!(
        !calls(&stranger, &replicas[0]).await,
        "another seed has another authority"
    );
}

#[tokio::test]
async fn an_authority_whose_secret_is_emptied_is_made_anew_and_all_follow() {
    let seed = Seed::start().await;
    let replicas = seed.replicas(2).await;
    let before = replicas[0].tls.client().current().await;
    seed.patch(json!({"data": null})).await;
    eventually_async("a new certificate", async || {
        let after = replicas[0].tls.client().current().await;
        !Arc::ptr_eq(&after, &before) && seed.authorities().await == 1
    })
    .await;
    eventually_async("all trust each other", async || all_call(&replicas).await).await;
    assert!(replicas.iter().all(|replica| replica.readiness.is_ready()));
}

#[tokio::test]
async fn an_authority_is_followed_by_the_next_while_all_trust_each_other() {
    let seed = Seed::start().await;
    // Begun eight months ago.
    seed.clock.advance(SignedDuration::from_hours(-24 * 250));
    // Three replicas of three programs, which find at the same time that the next authority is due.
    let replicas = seed.replicas(9).await;
    assert_eq!(seed.authorities().await, 1);
    seed.clock.advance(SignedDuration::from_hours(24 * 250));
    eventually_async("the next authority is there", async || {
        seed.authorities().await == 2
    })
    .await;
    eventually_async("all trust each other", async || all_call(&replicas).await).await;
    // One write for each, and nobody makes a third.
    let writes = || {
        let audit = seed.api.audit();
        audit
            .iter()
            .filter(|entry| entry.verb == "update" && entry.code == 200)
            .count()
    };
    assert_eq!(writes(), 2);
}

#[tokio::test]
async fn a_replica_starts_from_an_authority_that_it_cannot_renew() {
    let seed = Seed::start().await;
    let due = seed.clock.now() - SignedDuration::from_hours(24 * 250);
    let (certificate, key) = Authorities::default().renewed(due).unwrap().unwrap().to_pem();
    seed.put(&certificate, &key).await;
    // For example because etcd has no space left, or the permission is missing.
    seed.api
        .inject(Fault::always(FaultAction::InternalError).verb("update"));
    let replicas = seed.replicas(2).await;
    for replica in &replicas {
        replica.failure().await;
    }
    assert!(all_call(&replicas).await);
}

/// An authority of somebody else, with its key.
fn foreign(change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "somebody else");
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2090, 1, 1);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Nobody but the chart may create a Secret: one with the right to do that can ask for the token of any ServiceAccount.
#[tokio::test]
async fn an_authority_that_cannot_be_read_or_used_is_named_and_the_old_one_goes_on() {
    const UNUSABLE: &str =
        "the Secret garden/watchdog-authority cannot be used; correct it, or remove its data";
    const MISSING: &str = "the Secret garden/watchdog-authority does not exist; install the chart";
    for (wrong, expected, cause) in [
        ("no answer", "certificate", ""),
        ("missing", MISSING, ""),
        (
            "no key",
            UNUSABLE,
            "ca.crt holds 1 certificates and ca.key holds 0 keys",
        ),
        ("nobody would accept its certificates", UNUSABLE, ""),
    ] {
        let seed = Seed::start().await;
        let replica = seed.replica().await;
        replica.ready().await;
        match wrong {
            "no answer" => {
                seed.api
                    .inject(Fault::always(FaultAction::InternalError).verb("get"));
            }
            "missing" => {
                let params = DeleteParams::default();
                seed.secrets.delete(SECRET, &params).await.unwrap();
            }
            "no key" => seed.patch(json!({"data": {"ca.key": "Y2xhc3NpZmllZA=="}})).await,
            _ => {
                let (certificate, key) = foreign(|params| {
                    params.name_constraints = Some(NameConstraints {
                        permitted_subtrees: vec![GeneralSubtree::DnsName("elsewhere.test".to_owned())],
                        excluded_subtrees: Vec::new(),
                    });
                });
                seed.put(&certificate, &key).await;
            }
        }
        let shown = replica.failure().await;
        assert!(
            shown.contains(expected) && shown.contains(cause),
            "{wrong}: {shown}"
        );
        assert!(!shown.contains("classified"), "{shown}");
        assert!(replica.readiness.is_ready(), "it serves all the same");
        assert!(calls(&replica, &replica).await, "{wrong}");
        replica.renews(&seed.clock, SignedDuration::from_hours(9)).await;
        if wrong == "missing" {
            assert!(seed.secrets.get_opt(SECRET).await.unwrap().is_none());
        }
    }
}

#[tokio::test]
async fn an_authority_of_somebody_else_is_used_as_it_is() {
    let seed = Seed::start().await;
    let (certificate, key) = foreign(|_| {});
    seed.put(&certificate, &key).await;
    let replicas = seed.replicas(2).await;
    assert!(all_call(&replicas).await);
    assert_eq!(seed.authorities().await, 1, "it is valid for decades");
}

/// The parts of the Secret for people, once they are complete and not these.
async fn observer(
    seed: &Seed,
    other_than: Option<&BTreeMap<String, ByteString>>,
) -> BTreeMap<String, ByteString> {
    let read = async || seed.secrets.get(OBSERVER).await.unwrap().data.unwrap_or_default();
    eventually_async("a certificate for people", async || {
        let found = read().await;
        found.len() == 3 && Some(&found) != other_than
    })
    .await;
    read().await
}

#[tokio::test]
async fn replicas_keep_a_certificate_for_people_that_calls_and_serves_nobody() {
    let seed = Seed::start().await;
    // Handshakes go by the real clock, which the test reaches later.
    seed.clock.advance(SignedDuration::from_hours(-9));
    let empty = serde_json::from_value(json!({"metadata": {"name": OBSERVER}})).unwrap();
    seed.secrets.create(&PostParams::default(), &empty).await.unwrap();
    let replicas = seed.replicas_with(3, Some(OBSERVER)).await;
    let first = observer(&seed, None).await;
    let keys: Vec<&str> = first.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        ["ca.crt", "tls.crt", "tls.key"],
        "and never the key of the authority"
    );
    let people = |data: &BTreeMap<String, ByteString>| {
        let part = |name: &'static str| (name, data[name].0.as_slice());
        ClientTls::from_pem(part("ca.crt"), part("tls.crt"), part("tls.key")).unwrap()
    };
    assert!(connects(&people(&first), &replicas[0]).await);

    seed.clock.advance(SignedDuration::from_hours(9));
    let second = observer(&seed, Some(&first)).await;
    assert!(connects(&people(&second), &replicas[0]).await);
    // A key that was replaced by hand is noticed.
    let patch = Patch::Merge(json!({"data": {"tls.key": first["tls.key"]}}));
    seed.secrets
        .patch(OBSERVER, &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually_async("another certificate", async || {
        let data = seed.secrets.get(OBSERVER).await.unwrap().data.unwrap();
        data["tls.crt"] != second["tls.crt"] && data["tls.key"] != first["tls.key"]
    })
    .await;
    // A Secret that is missing is named, and created by nobody. The replicas go on.
    seed.secrets
        .delete(OBSERVER, &DeleteParams::default())
        .await
        .unwrap();
    let shown = replicas[0].failure().await;
    assert!(
        shown.contains("the Secret garden/watchdog-observer does not exist"),
        "{shown}"
    );
    assert!(all_call(&replicas).await);
}
