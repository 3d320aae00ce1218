use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::*;
use crate::leadership::LeaseTimes;

fn election() -> (Leadership, LeaderElection) {
    let api = tower::service_fn(|_: Request<Body>| std::future::pending::<kube::Result<Response<Body>>>());
    election_by(kube::Client::new(api, "garden"))
}

fn election_by(client: kube::Client) -> (Leadership, LeaderElection) {
    let config = ElectionConfig {
        client,
        namespace: "garden".to_owned(),
        lease: "lease",
        service: "weeder",
        identity: "me".into(),
        address: None,
        readiness: Readiness::default(),
        timing: ElectionTiming::default(),
    };
    LeaderElection::join(config, CancellationToken::new())
}

/// The Lease as this process writes it now.
fn claim(election: &mut LeaderElection) -> Lease {
    let (now, at) = (election.now(), election.wall_clock());
    election.candidate.claim(now, "lease", at)
}

/// The Lease in this version, with this holder.
fn held_by(election: &mut LeaderElection, version: &str, holder: &str, seconds: i32) -> Lease {
    let mut lease = claim(election);
    lease.metadata.resource_version = Some(version.to_owned());
    let spec = lease.spec.as_mut().unwrap();
    spec.holder_identity = Some(holder.to_owned());
    spec.lease_duration_seconds = Some(seconds);
    lease
}

/// Finds no Lease for as long as a leader may act without one, and creates it.
async fn lead(election: &mut LeaderElection) {
    election.on_answer(Ok(None));
    tokio::time::advance(election.config.timing.slow.lease_duration).await;
    election.sent = election.now();
    election.on_answer(Ok(None));
    assert!(matches!(election.candidate.step(), ElectionStep::Write(_)));
    election.sent = election.now();
    let mine = claim(election);
    election.on_answer(Ok(Some(mine)));
    election.show(election.now());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_held_for_an_hour_blocks_readiness_until_it_is_given_back() {
    let (_, mut election) = election();
    let readiness = election.config.readiness.clone();
    let why = || readiness.blockers().into_values().collect::<Vec<_>>().join("\n");
    assert!(why().contains("garden/lease has not been read yet"), "{}", why());
    let seconds = |of: Duration| i32::try_from(of.as_secs()).unwrap();
    let longest = PARKED_FROM * election.config.timing.slow.lease_duration;
    let leader = held_by(&mut election, "1", "prober-1", seconds(longest));
    election.on_answer(Ok(Some(leader)));
    assert_eq!(why(), "", "a standby is ready");
    let parked = held_by(&mut election, "2", "gardener-operator", 3_600);
    for _ in 0..2 {
        election.on_answer(Ok(Some(parked.clone())));
        let why = why();
        assert!(
            why.contains("gardener-operator holds the Lease garden/lease for another 3600 s"),
            "{why}"
        );
    }
    let released = held_by(&mut election, "3", "", 1);
    election.on_answer(Ok(Some(released)));
    assert_eq!(why(), "");
    assert!(
        matches!(election.candidate.step(), ElectionStep::Write(_)),
        "it may be taken"
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_within_2_s_whatever_a_write_or_the_seed_does() {
    for writes in [true, false] {
        let (leadership, mut election) = election();
        let election_timing = election.config.timing;
        lead(&mut election).await;
        let permit = writes.then(|| leadership.act().unwrap());
        let began = Instant::now();
        timeout(2 * RELEASE_TIMEOUT, election.leave(false)).await.unwrap();
        // The clock is paused. A write is waited for, and then a request to the seed.
        let waited = match writes {
            true => RELEASE_TIMEOUT,
            false => election_timing.usual.request_timeout().min(RELEASE_TIMEOUT),
        };
        assert!(began.elapsed() >= waited);
        assert!(!leadership.is_leader());
        drop(permit);
    }
}

/// A write and each request of the election take as long as they may where the Lease can still be renewed.
#[tokio::test(start_paused = true)]
async fn a_drain_on_a_slow_api_server_releases_the_lease() {
    let stored = Arc::new(Mutex::new(json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "lease", "resourceVersion": "1"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    })));
    let seen = Arc::clone(&stored);
    let slowest = LeaseTimes::CLIENT_GO.request_timeout() - Duration::from_millis(1);
    let api = tower::service_fn(move |request: Request<Body>| {
        let stored = Arc::clone(&stored);
        async move {
            sleep(slowest).await;
            let body = request.into_body().collect().await?.to_bytes();
            let mut stored = stored.lock();
            if let Ok(lease) = serde_json::from_slice(&body) {
                *stored = lease;
                stored["metadata"]["resourceVersion"] = json!(format!("{:?}", Instant::now()));
            }
            Ok::<_, kube::Error>(Response::new(Body::from(stored.to_string().into_bytes())))
        }
    });
    let (leadership, election) = election_by(kube::Client::new(api, "garden"));
    let stop = election.stop.clone();
    let running = tokio::spawn(election.run());
    let mut leads = leadership.subscribe();
    let leading = timeout(Duration::from_secs(60), leads.wait_for(|leads| *leads));
    leading.await.unwrap().unwrap();
    let permit = leadership.act().unwrap();
    let write = tokio::spawn(async move {
        sleep(slowest).await;
        drop(permit);
    });
    stop.cancel();
    running.await.unwrap();
    assert!(write.is_finished() && !leadership.is_leader());
    assert_eq!(seen.lock()["spec"]["holderIdentity"], "", "it is released");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_its_lease_says_so_as_soon_as_it_must_not_act() {
    let (leadership, mut election) = election();
    lead(&mut election).await;
    let readiness = election.config.readiness.clone();
    assert!(leadership.is_leader() && readiness.blockers().is_empty());
    tokio::time::advance(election.config.timing.usual.renew_deadline).await;
    election.show(election.now());
    let [why] = &readiness.lines()[..] else {
        panic!("{:?}", readiness.lines())
    };
    assert!(
        why.starts_with("leader-election: the Lease garden/lease was not renewed in time"),
        "{why}"
    );
    // The renewal that was under way succeeds after all.
    election.sent = election.now();
    let mine = claim(&mut election);
    election.on_answer(Ok(Some(mine)));
    election.show(election.now());
    assert_eq!(readiness.lines(), [""; 0]);
    // Another one leads.
    tokio::time::advance(election.config.timing.usual.renew_deadline).await;
    election.show(election.now());
    assert_eq!(readiness.blockers().len(), 1);
    let conflict = kube::core::Status::failure("no", "Conflict").with_code(409);
    election.on_answer(Err(RequestError::Refused(Box::new(conflict))));
    let taken = held_by(&mut election, "2", "b", 4);
    election.on_answer(Ok(Some(taken)));
    election.show(election.now());
    assert_eq!(readiness.lines(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_acting_when_the_version_that_it_replaces_is_gone_and_acts_on_when_a_server_fails() {
    for (code, failing) in [(409, false), (404, false), (503, true)] {
        let (leadership, mut election) = election();
        lead(&mut election).await;
        assert!(leadership.is_leader());
        let status = kube::core::Status::failure("no", "Refused").with_code(code);
        election.on_answer(Err(RequestError::Refused(Box::new(status))));
        election.show(election.now());
        assert_eq!(leadership.is_leader(), failing);
        assert!(leadership.holds_lease(), "nobody else has it");
        assert_eq!(election.config.readiness.failures().len(), usize::from(failing));
    }
}

/// The API server answers slowly, then fast, until the leader writes a short Lease again: that write gets no answer,
/// but others may have seen it.
#[tokio::test(start_paused = true)]
async fn a_leader_acts_by_the_short_lease_as_soon_as_it_sends_one() {
    let began = Instant::now();
    let (short, mut sent) = watch::channel(None);
    let api = tower::service_fn(move |request: Request<Body>| {
        let short = short.clone();
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            let mut lease = match body.is_empty() {
                true => json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": "lease"},
                    "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
                }),
                false => serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?,
            };
            if began.elapsed() < Duration::from_secs(30) {
                sleep(Duration::from_secs(1)).await;
            } else if lease["spec"]["leaseDurationSeconds"] == 4 {
                short.send_replace(Some(Instant::now()));
                std::future::pending::<()>().await;
            }
            lease["metadata"]["resourceVersion"] = json!(format!("{:?}", began.elapsed()));
            Ok::<_, kube::Error>(Response::new(Body::from(lease.to_string().into_bytes())))
        }
    });
    let (leadership, election) = election_by(kube::Client::new(api, "garden"));
    let (stop, usual) = (election.stop.clone(), election.config.timing.usual);
    let running = tokio::spawn(election.run());
    let sent = timeout(Duration::from_secs(120), sent.wait_for(Option::is_some)).await;
    let sent = sent.unwrap().unwrap().unwrap();
    assert!(leadership.act().unwrap().until() <= sent + usual.renew_deadline);
    stop.cancel();
    running.await.unwrap();
}

/// The Lease is answered at once. A Lease of 4 s would end before such a write does.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_write_was_slow_leads_for_long() {
    let (leadership, mut election) = election();
    lead(&mut election).await;
    let permit = leadership.act().unwrap();
    tokio::time::advance(election.config.timing.usual.retry_period).await;
    drop(permit);
    election.note_slow_actions(election.now());
    let lease = claim(&mut election);
    let seconds = lease.spec.and_then(|spec| spec.lease_duration_seconds);
    assert_eq!(seconds, Some(20));
}
