//! A shoot whose API server is hostile, beside one that loses its nodes: the loss is reported as if the hostile one
//! were not there.

use watchdog_proto::probe::v1::watch_verdicts_response::Event;
use watchdog_proto::probe::v1::{Outcome, Verdict};
use watchdog_proto::stream::v1::Scope;
use watchdog_sandbox::hostile::{HostileServer, Hostility};
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::simulation::Cut;

use crate::fixture::{Fixture, fast};
use crate::replica::Replica;

/// Characters of a message: a name of 253 bytes, and the sentence around it.
const LONGEST_MESSAGE: usize = 512;

fn check_text(verdict: &Verdict) {
    let text = &verdict.message;
    assert!(text.chars().count() <= LONGEST_MESSAGE, "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[tokio::test]
async fn a_node_with_a_name_of_300_000_bytes_costs_other_shoots_nothing() {
    let fixture = Fixture::new(fast(), 3, &["hostile", "honest"]).await;
    let (hostile, honest) = (fixture.shoot("hostile"), fixture.shoot("honest"));
    let server = HostileServer::start(Hostility::LongName, true).await.unwrap();
    fixture.set_kubeconfig(&hostile, PROBE_SECRET, &server.kubeconfig);
    let replica = Replica::start(&fixture).await;
    let quoted = replica.until_said(&hostile, Outcome::Inconclusive, "nnn").await;
    check_text(&quoted);
    replica.until_outcome(&honest, Outcome::Healthy).await;
    let mut all = replica.watch(Scope::Seed, &[]).await;
    assert_eq!(all.snapshot().await.len(), 2);

    honest.cut(Cut::All);
    // The stream that has brought the name brings the loss, too.
    let mut outcome = Outcome::Healthy;
    while outcome != Outcome::LeasesExpired {
        if let Event::Upsert(verdict) = all.next().await.unwrap() {
            check_text(&verdict);
            if verdict.shoot == honest.namespace() {
                outcome = verdict.outcome();
            }
        }
    }
    honest.heal();
    replica.until_outcome(&honest, Outcome::Healthy).await;
    replica.until_said(&hostile, Outcome::Inconclusive, "nnn").await;
}
