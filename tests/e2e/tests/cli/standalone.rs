//! lease-probe beside a running release, as somebody starts it who may only read.

use std::collections::BTreeMap;

use tonic::transport::{Channel, Endpoint};
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::probe::v1::{ListVerdictsRequest, Outcome};
use watchdog_sandbox::{AuditEntry, Rule};
use watchdog_test_support::binaries;
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::wait::{BOUND, until_true};
use watchdog_test_support::watchdog::Service;

const SHOOTS: [&str; 2] = ["shoot--sandbox--one", "shoot--sandbox--two"];

/// Its name, and its user on the seed.
const VISITOR: &str = "visitor";

/// All that somebody needs who looks: nothing that writes, and no Leases.
fn read_only() -> Vec<Rule> {
    let allow = |verbs: &[&str], group: &str, resource: &str, names: &[&str]| Rule {
        verbs: verbs.iter().map(ToString::to_string).collect(),
        groups: vec![group.to_owned()],
        resources: vec![resource.to_owned()],
        names: names.iter().map(ToString::to_string).collect(),
        ..Rule::default()
    };
    vec![
        allow(&["list", "watch"], "extensions.gardener.cloud", "clusters", &[]),
        allow(&["list"], "machine.sapcloud.io", "machines", &[]),
        allow(&["list", "watch"], "", "secrets", &[PROBE_SECRET]),
        // As everybody has it, by the ClusterRole system:basic-user.
        allow(
            &["create"],
            "authorization.k8s.io",
            "selfsubjectaccessreviews",
            &[],
        ),
    ]
}

/// Outcome and observer of each shoot, as a replica reports them for the whole seed.
async fn verdicts(replica: Channel) -> anyhow::Result<BTreeMap<String, (Outcome, String)>> {
    let mut client = LeaseProbeServiceClient::new(replica);
    let answer = client.list_verdicts(ListVerdictsRequest::default()).await?;
    let verdicts = answer.into_inner().verdicts.into_iter();
    Ok(verdicts
        .map(|verdict| (verdict.shoot.clone(), (verdict.outcome(), verdict.observer)))
        .collect())
}

fn all_by(observer: &str, outcome: Outcome) -> BTreeMap<String, (Outcome, String)> {
    SHOOTS
        .map(|shoot| (shoot.to_owned(), (outcome, observer.to_owned())))
        .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_may_only_read_looks_without_joining() {
    let fixture = SandboxFixture::start("standalone", &["one", "two"])
        .await
        .unwrap();
    let release = fixture.lease_probe().await.unwrap();
    let coordinator = fixture.coordinator().await.unwrap();
    let own = fixture.setup.channel(&release).unwrap();
    until_true("the release reports both shoots", BOUND, || async {
        Ok(verdicts(own.clone()).await? == all_by("lease-probe-0", Outcome::Healthy))
    })
    .await
    .unwrap();

    let seed = fixture.sandbox.seed();
    seed.restrict(VISITOR, read_only());
    let command = fixture.bare_command(binaries::LEASE_PROBE, VISITOR).unwrap();
    let command = command.args(["--standalone", "--insecure-plaintext"]);
    let visitor = fixture.setup.custom(command).await.unwrap();
    visitor.wait_ready().await.unwrap();
    let plaintext = Endpoint::from_shared(format!("http://{}", visitor.grpc)).unwrap();
    let plaintext = plaintext.connect().await.unwrap();
    until_true("it reports all shoots by itself", BOUND, || async {
        Ok(verdicts(plaintext.clone()).await? == all_by(VISITOR, Outcome::Healthy))
    })
    .await
    .unwrap();

    // It sees an incident, and the release does as if it were alone.
    let shoots = ["one", "two"].map(|name| fixture.shoot(name).unwrap());
    shoots.iter().for_each(|shoot| fixture.cut_off(shoot));
    until_true("it sees the loss", BOUND, || async {
        Ok(verdicts(plaintext.clone()).await? == all_by(VISITOR, Outcome::LeasesExpired))
    })
    .await
    .unwrap();
    for shoot in &shoots {
        fixture.wait_replicas(shoot, 0, BOUND).await.unwrap();
    }
    untouched(&fixture, &release, &coordinator).await;
    let found = verdicts(own).await.unwrap();
    assert_eq!(found, all_by("lease-probe-0", Outcome::LeasesExpired));
}

/// Neither the seed nor the release has noticed it.
async fn untouched(fixture: &SandboxFixture, release: &Service, coordinator: &Service) {
    let is_lease = |entry: &AuditEntry| entry.path.contains("/leases");
    let audit = fixture.sandbox.seed().audit();
    let (mut asked, mut others) = (0, 0);
    for entry in &audit {
        if entry.user != VISITOR {
            others += usize::from(is_lease(entry));
            continue;
        }
        asked += 1;
        let is_question = entry.path.ends_with("/selfsubjectaccessreviews");
        assert!(is_question || !entry.is_write(), "{} {}", entry.verb, entry.path);
        assert!(!is_lease(entry), "{} {}", entry.verb, entry.path);
        assert_ne!(entry.code, 403, "{} {}", entry.verb, entry.path);
    }
    assert!(asked > 0 && others > 0, "{asked} {others}");
    assert_eq!(
        release
            .metric("watchdog_membership_members{service=\"lease-probe\"}")
            .await
            .unwrap(),
        Some(1.0),
        "the release has one member"
    );
    let synced = "watchdog_scaling_lease_probe_replicas{state=\"synced\"}";
    assert_eq!(coordinator.metric(synced).await.unwrap(), Some(1.0));
}
