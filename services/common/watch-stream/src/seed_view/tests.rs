use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use watchdog_client::failure::{Failure, Reason};
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::watch_verdicts_response::Event as PbEvent;
use watchdog_proto::stream::v1 as pb;
use watchdog_runtime::request::PageRequest;

use super::known_replicas::WAIT_FOR_REPLICAS;
use super::merge::Merge;
use super::*;
use crate::follow::{Received, Update};
use crate::message::{COMPLETE, Completeness};
use crate::stream::Responses;
use crate::wire::{self, ItemPage};

const SECOND: Duration = Duration::from_secs(1);

/// The shoots of this replica, with who observed them.
fn own_verdicts() -> OwnItems<String, &'static str, probe::Verdict> {
    OwnItems {
        store: StreamStore::new(),
        key: String::clone,
        encode: Box::new(|shoot, observer| verdict(shoot, observer).value),
        is_filled: Box::new(|has| has(&"one".to_owned())),
    }
}

/// The view of a replica `me` that knows the seed, with what it receives of the others.
fn view() -> (SeedView<probe::Verdict>, Merge) {
    let view = SeedView::shared("me".into(), CancellationToken::new());
    let peers = Merge {
        view: view.clone(),
        exists: Box::new(|shoot| shoot != "gone"),
    };
    (view, peers)
}

fn fill(view: &SeedView<probe::Verdict>) {
    view.replicas.send_modify(|replicas| replicas.set_filled(true));
}

fn verdict(shoot: &str, observer: &str) -> Received<probe::Verdict> {
    let value = probe::Verdict {
        shoot: shoot.to_owned(),
        observer: observer.to_owned(),
        outcome: probe::Outcome::Healthy.into(),
        ..Default::default()
    };
    let now = Instant::now();
    Received {
        value,
        sent_at: now,
        set_at: now,
    }
}

/// The view's own replica has a verdict on a shoot.
fn set_own(view: &SeedView<probe::Verdict>, shoot: &str) {
    let now = Instant::now();
    let item = TimedItem {
        item: Arc::new(verdict(shoot, "me").value),
        as_of: now,
        set_at: now,
    };
    view.own.update(shoot.to_owned(), |_| KeyUpdate::Changed(item));
}

fn snapshot(shoots: &[&str], observer: &str, completeness: Completeness) -> Update<String, probe::Verdict> {
    let items = shoots
        .iter()
        .map(|shoot| (shoot.to_string(), verdict(shoot, observer)));
    Update::Snapshot(items.collect(), completeness)
}

fn open(view: &SeedView<probe::Verdict>, scope: pb::Scope) -> Responses<probe::WatchVerdictsResponse> {
    view.watch(scope, |_| true).unwrap()
}

async fn next(stream: &mut Responses<probe::WatchVerdictsResponse>) -> PbEvent {
    stream.next().await.unwrap().unwrap().event.unwrap()
}

/// The shoots of a stream's snapshot, and what it lacks.
async fn whole(stream: &mut Responses<probe::WatchVerdictsResponse>) -> (Vec<String>, pb::Completeness) {
    let mut shoots = Vec::new();
    loop {
        match next(stream).await {
            PbEvent::Upsert(verdict) => shoots.push(verdict.shoot),
            PbEvent::SnapshotComplete(complete) => {
                assert_eq!(complete.items, shoots.len() as u64);
                return (shoots, complete.completeness.unwrap());
            }
            PbEvent::Removed(_) => panic!("removed within a snapshot"),
            PbEvent::Heartbeat(_) => {}
        }
    }
}

fn valid_for(verdict: &probe::Verdict) -> Duration {
    forward(verdict.valid_for.as_ref())
}

fn missing(replicas: &[&str]) -> pb::Completeness {
    pb::Completeness {
        complete: false,
        missing_replicas: replicas.iter().map(ToString::to_string).collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_waits_for_every_replica_that_is_known() {
    let (view, peers) = view();
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    let began = Instant::now();
    fill(&view);
    let mut stream = open(&view, pb::Scope::Seed);
    peers.on_join(&a);
    peers.on_join(&b);
    peers.on_listed();
    let report = async {
        tokio::time::sleep(2 * SECOND).await;
        peers.on_update(&a, snapshot(&["one"], "a", COMPLETE));
        tokio::time::sleep(2 * SECOND).await;
        peers.on_update(&b, snapshot(&["two"], "b", COMPLETE));
    };
    let (snapshot, ()) = tokio::join!(whole(&mut stream), report);
    assert_eq!(snapshot, (vec!["one".to_owned(), "two".to_owned()], COMPLETE));
    assert_eq!(began.elapsed(), 4 * SECOND);
    let set_earlier = Received {
        set_at: began + SECOND,
        ..verdict("two", "b")
    };
    peers.on_update(&b, Update::Upsert("two".to_owned(), set_earlier));
    let message = stream.next().await.unwrap().unwrap();
    assert!(matches!(message.event, Some(PbEvent::Upsert(verdict)) if verdict.shoot == "two"));
    let age = message.position.and_then(|position| position.item_age);
    assert_eq!(forward(age.as_ref()), 3 * SECOND, "as old as its replica says");
}

#[tokio::test(start_paused = true)]
async fn an_answer_waits_for_ten_seconds_and_then_says_what_is_missing() {
    let (view, peers) = view();
    let a: Arc<str> = "a".into();
    let began = Instant::now();
    let list = async |scope| {
        let request = PageRequest::read(0, "", &[]).unwrap();
        let page = view.list(scope, &request, |_, _| true).await.unwrap();
        page.completeness.unwrap()
    };
    let mut stream = open(&view, pb::Scope::Seed);
    assert!(
        matches!(next(&mut stream).await, PbEvent::Heartbeat(_)),
        "a sign of life after 5 s"
    );
    let unlisted = whole(&mut stream).await;
    assert_eq!(unlisted, (Vec::new(), missing(&["me"])));
    assert_eq!(began.elapsed(), WAIT_FOR_REPLICAS);
    assert_eq!(list(pb::Scope::Replica).await, missing(&["me"]));
    fill(&view);
    assert_eq!(
        list(pb::Scope::Seed).await,
        missing(&[]),
        "the replicas are not known"
    );
    assert_eq!(list(pb::Scope::Replica).await, COMPLETE);
    assert_eq!(began.elapsed(), WAIT_FOR_REPLICAS, "none of them waited again");

    peers.on_join(&a);
    peers.on_listed();
    assert_eq!(list(pb::Scope::Seed).await, missing(&["a"]));
    assert_eq!(began.elapsed(), 2 * WAIT_FOR_REPLICAS, "a had its ten seconds");
    peers.on_update(&a, snapshot(&[], "a", COMPLETE));
    assert_eq!(list(pb::Scope::Seed).await, COMPLETE);
    peers.on_update(&a, Update::Lost(Failure::new(Reason::Connection, &"cut")));
    assert_eq!(list(pb::Scope::Seed).await, missing(&["a"]));
    peers.on_leave(&a);
    assert_eq!(list(pb::Scope::Seed).await, COMPLETE);
    assert_eq!(began.elapsed(), 2 * WAIT_FOR_REPLICAS);
}

/// A watcher acts on what it knows: it must learn when that is no longer all.
#[tokio::test(start_paused = true)]
async fn an_open_stream_says_at_once_when_a_replica_is_lost_and_when_it_is_back() {
    let (view, peers) = view();
    let a: Arc<str> = "a".into();
    fill(&view);
    peers.on_join(&a);
    peers.on_update(&a, snapshot(&["one"], "a", COMPLETE));
    peers.on_listed();
    let mut stream = open(&view, pb::Scope::Seed);
    assert_eq!(whole(&mut stream).await.1, COMPLETE);
    let began = Instant::now();
    let heartbeat = async |stream: &mut Responses<_>| match next(stream).await {
        PbEvent::Heartbeat(heartbeat) => heartbeat.completeness.unwrap(),
        other => panic!("{other:?}"),
    };
    peers.on_update(&a, Update::Lost(Failure::new(Reason::Connection, &"cut")));
    assert_eq!(heartbeat(&mut stream).await, missing(&["a"]));
    peers.on_update(&a, snapshot(&["one"], "a", COMPLETE));
    let PbEvent::Upsert(again) = next(&mut stream).await else {
        panic!("it sent its items anew");
    };
    assert_eq!(again.shoot, "one");
    assert_eq!(heartbeat(&mut stream).await, COMPLETE);
    assert_eq!(began.elapsed(), Duration::ZERO);
    // A replica that joins has its ten seconds to send its items.
    peers.on_join(&"b".into());
    assert_eq!(heartbeat(&mut stream).await, COMPLETE);
    assert_eq!(began.elapsed(), 5 * SECOND);
    // Another heartbeat may be due at the same moment.
    while heartbeat(&mut stream).await != missing(&["b"]) {}
    assert_eq!(began.elapsed(), WAIT_FOR_REPLICAS);
}

#[tokio::test(start_paused = true)]
async fn a_shoot_that_moves_to_another_replica_is_never_removed() {
    let (view, peers) = view();
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    fill(&view);
    for replica in [&a, &b] {
        peers.on_join(replica);
        peers.on_update(replica, snapshot(&[], replica, COMPLETE));
    }
    peers.on_listed();
    peers.on_update(&a, Update::Upsert("moves".to_owned(), verdict("moves", "a")));
    peers.on_update(&a, Update::Upsert("gone".to_owned(), verdict("gone", "a")));
    let mut stream = open(&view, pb::Scope::Seed);
    assert_eq!(whole(&mut stream).await.0, ["gone", "moves"]);
    peers.on_update(&a, Update::Removed("moves".to_owned()));
    peers.on_update(&a, Update::Removed("gone".to_owned()));
    assert_eq!(
        next(&mut stream).await,
        PbEvent::Removed("gone".to_owned()),
        "its Cluster is gone"
    );
    peers.on_update(&b, Update::Upsert("moves".to_owned(), verdict("moves", "b")));
    assert!(matches!(next(&mut stream).await, PbEvent::Upsert(verdict) if verdict.observer == "b"));
    // A replica that dies: its Lease ends later than its stream.
    peers.on_update(&b, Update::Lost(Failure::new(Reason::Connection, &"cut")));
    peers.on_leave(&b);
    peers.on_update(&a, Update::Upsert("moves".to_owned(), verdict("moves", "a")));
    assert!(matches!(next(&mut stream).await, PbEvent::Upsert(verdict) if verdict.observer == "a"));
}

/// Renewals are nearly all there is to send: of 10,000 healthy shoots, each probe.
#[tokio::test(start_paused = true)]
async fn a_renewal_waits_for_half_of_the_validity_and_a_change_does_not() {
    let (view, peers) = view();
    let a: Arc<str> = "a".into();
    fill(&view);
    peers.on_join(&a);
    peers.on_update(&a, snapshot(&[], "a", COMPLETE));
    peers.on_listed();
    let probed = |outcome: probe::Outcome| {
        let mut verdict = verdict("one", "a");
        verdict.value.valid_for = Some(wire::duration(40 * SECOND));
        verdict.value.outcome = outcome.into();
        verdict
    };
    let report = |outcome| peers.on_update(&a, Update::Upsert("one".to_owned(), probed(outcome)));
    report(probe::Outcome::Healthy);
    let mut stream = open(&view, pb::Scope::Seed);
    whole(&mut stream).await;
    let began = Instant::now();
    let probes = async {
        for _ in 0..3 {
            tokio::time::sleep(8 * SECOND).await;
            report(probe::Outcome::Healthy);
        }
        let answer = view.get(&"one".to_owned()).await.item.unwrap();
        assert_eq!(valid_for(&answer), 40 * SECOND, "unary answers have the newest");
        report(probe::Outcome::LeasesExpired);
    };
    let read = async {
        let mut upserts = Vec::new();
        while upserts.len() < 2 {
            if let PbEvent::Upsert(verdict) = next(&mut stream).await {
                upserts.push((began.elapsed(), verdict));
            }
        }
        upserts
    };
    let upserts = tokio::select! {
        () = peers.tidy() => unreachable!("never ends"),
        ((), upserts) = async { tokio::join!(probes, read) } => upserts,
    };
    let [(renewed, renewal), (changed, change)] = &upserts[..] else {
        panic!("{upserts:?}");
    };
    assert_eq!((*renewed, *changed), (20 * SECOND, 24 * SECOND));
    assert_eq!(valid_for(renewal), 36 * SECOND, "of the probe 4 s before");
    assert_eq!(change.outcome(), probe::Outcome::LeasesExpired);
}

/// The others are members, and only their streams are cut: what they reported stands, for a while.
#[tokio::test(start_paused = true)]
async fn a_shoot_that_was_hibernated_is_shown_as_skipped_although_another_replica_cannot_say_so() {
    let (view, peers) = view();
    let a: Arc<str> = "a".into();
    fill(&view);
    peers.on_join(&a);
    peers.on_listed();
    let mut probed = verdict("one", "a");
    probed.value.valid_for = Some(wire::duration(40 * SECOND));
    probed.value.list_revision = 70;
    peers.on_update(&a, snapshot(&[], "a", COMPLETE));
    peers.on_update(&a, Update::Upsert("one".to_owned(), probed));
    let mut stream = open(&view, pb::Scope::Seed);
    assert_eq!(whole(&mut stream).await, (vec!["one".to_owned()], COMPLETE));
    peers.on_update(&a, Update::Lost(Failure::new(Reason::Connection, &"cut")));
    tokio::time::sleep(SECOND).await;
    let mut skipped = verdict("one", "me");
    skipped.value.outcome = probe::Outcome::Skipped.into();
    peers.on_update(&"me".into(), Update::Upsert("one".to_owned(), skipped));
    let began = Instant::now();
    let read = async {
        loop {
            if let PbEvent::Upsert(verdict) = next(&mut stream).await {
                return verdict.outcome();
            }
        }
    };
    tokio::select! {
        () = peers.tidy() => unreachable!("never ends"),
        outcome = tokio::time::timeout(60 * SECOND, read) => {
            assert_eq!(outcome.unwrap(), probe::Outcome::Skipped);
        }
    }
    assert!(began.elapsed() <= 40 * SECOND, "{:?}", began.elapsed());
}

/// A follower keeps the items that an incomplete snapshot lacks. Some of them may be gone.
#[tokio::test(start_paused = true)]
async fn a_stream_that_began_without_a_replica_ends_when_none_is_missing() {
    let (view, peers) = view();
    let a: Arc<str> = "a".into();
    fill(&view);
    peers.on_join(&a);
    peers.on_listed();
    let mut stream = open(&view, pb::Scope::Seed);
    assert!(matches!(next(&mut stream).await, PbEvent::Heartbeat(_)));
    assert_eq!(whole(&mut stream).await, (Vec::new(), missing(&["a"])));
    peers.on_join(&"b".into());
    peers.on_update(&a, snapshot(&["one"], "a", COMPLETE));
    assert!(matches!(next(&mut stream).await, PbEvent::Upsert(_)));
    peers.on_leave(&"b".into());
    let end = stream.next().await.unwrap().unwrap_err();
    assert_eq!(end.code(), tonic::Code::Unavailable);
    let mut again = open(&view, pb::Scope::Seed);
    assert_eq!(whole(&mut again).await, (vec!["one".to_owned()], COMPLETE));
}

#[tokio::test(start_paused = true)]
async fn a_local_stream_that_began_too_early_ends_when_the_replica_has_its_items() {
    let (view, _) = view();
    let mut stream = open(&view, pb::Scope::Replica);
    assert_eq!(whole(&mut stream).await, (Vec::new(), missing(&["me"])));
    fill(&view);
    let end = stream.next().await.unwrap().unwrap_err();
    assert_eq!(end.code(), tonic::Code::Unavailable);
    let mut again = open(&view, pb::Scope::Replica);
    assert_eq!(whole(&mut again).await, (Vec::new(), COMPLETE));
    assert!(
        matches!(next(&mut again).await, PbEvent::Heartbeat(_)),
        "it goes on"
    );
}

#[tokio::test(start_paused = true)]
async fn the_items_of_this_replica_are_local_and_merged() {
    let (view, merge) = view();
    let own = own_verdicts();
    let store = own.store.clone();
    store.upsert("one".to_owned(), "first");
    let follow = tokio::spawn(async move { merge.own(&own).await });
    let mut local = open(&view, pb::Scope::Replica);
    assert_eq!(whole(&mut local).await, (vec!["one".to_owned()], COMPLETE));
    store.upsert("one".to_owned(), "second");
    assert!(matches!(next(&mut local).await, PbEvent::Upsert(verdict) if verdict.observer == "second"));
    let answer = view.get(&"one".to_owned()).await;
    assert_eq!(answer.item.unwrap().observer, "second");
    store.remove(&"one".to_owned());
    assert_eq!(next(&mut local).await, PbEvent::Removed("one".to_owned()));
    assert!(
        view.get(&"one".to_owned()).await.item.is_some(),
        "another replica may own it now"
    );
    follow.abort();
}

#[tokio::test(start_paused = true)]
async fn pages_are_in_the_order_of_the_keys_and_their_tokens_hold_everywhere() {
    let (here, here_peers) = view();
    let (there, there_peers) = view();
    for (view, peers) in [(&here, &here_peers), (&there, &there_peers)] {
        fill(view);
        peers.on_join(&"a".into());
        peers.on_listed();
        peers.on_update(&"a".into(), snapshot(&["c", "a", "other", "b"], "a", COMPLETE));
    }
    let filter = ["ListVerdicts"];
    let matches = |shoot: &String, _: &probe::Verdict| shoot != "other";
    let request = PageRequest::read(2, "", &filter).unwrap();
    let first = here.list(pb::Scope::Seed, &request, matches).await.unwrap();
    let names =
        |page: &ItemPage<probe::Verdict>| page.items.iter().map(|v| v.shoot.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&first), first.total_size),
        (vec!["a".to_owned(), "b".to_owned()], 3)
    );
    let request = PageRequest::read(2, &first.next_page_token, &filter).unwrap();
    let second = there.list(pb::Scope::Seed, &request, matches).await.unwrap();
    assert_eq!(
        (names(&second), second.next_page_token.as_str()),
        (vec!["c".to_owned()], "")
    );
}

/// As the coordinator of the drop-in program has the verdicts of lease-probe beside it.
#[tokio::test(start_paused = true)]
async fn a_handler_in_the_process_is_told_of_the_own_items() {
    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);
    impl ReplicaHandler for Arc<Told> {
        fn on_join(&self, replica: &Arc<str>) {
            self.0.lock().push(format!("join {replica}"));
        }
        fn on_leave(&self, replica: &Arc<str>) {
            self.0.lock().push(format!("leave {replica}"));
        }
        fn on_update(&self, _: &Arc<str>, update: Update<String, probe::Verdict>) {
            self.0.lock().push(match update {
                Update::Snapshot(items, _) => format!("snapshot {:?}", items.keys().collect::<Vec<_>>()),
                Update::Upsert(key, received) => format!("upsert {key} by {}", received.value.observer),
                Update::Removed(key) => format!("removed {key}"),
                other => format!("{other:?}"),
            });
        }
    }
    let (view, peers) = view();
    set_own(&view, "one");
    // Reports of others do not reach it.
    peers.on_join(&"other".into());
    peers.on_update(&"other".into(), snapshot(&["theirs"], "other", COMPLETE));
    let told = Arc::new(Told::default());
    let play = async {
        tokio::time::sleep(SECOND).await;
        set_own(&view, "two");
        tokio::time::sleep(SECOND).await;
        view.own.remove(&"one".to_owned());
        tokio::time::sleep(SECOND).await;
        view.draining.cancel();
    };
    tokio::join!(view.follow_in_process(told.clone()), play);
    let told = told.0.lock();
    assert_eq!(
        *told,
        ["join me", "snapshot [\"one\"]", "upsert two by me", "removed one"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_replica_has_all_items_anew_each_time_it_begins_to_lead() {
    let (view, peers) = view();
    let leads = watch::Sender::new(false);
    peers.on_listed();
    let own = own_verdicts();
    let follow = view.follow_lead(leads.subscribe(), &own.is_filled);
    let completeness = || view.replicas.borrow().completeness(pb::Scope::Seed).0;
    let play = async {
        leads.send_replace(true);
        tokio::time::sleep(SECOND).await;
        assert_eq!(completeness(), missing(&["me"]));
        set_own(&view, "one");
        tokio::time::sleep(SECOND).await;
        assert_eq!(completeness(), COMPLETE);
        leads.send_replace(false);
        tokio::time::sleep(SECOND).await;
        view.own.remove(&"one".to_owned());
        leads.send_replace(true);
        tokio::time::sleep(SECOND).await;
        assert_eq!(completeness(), missing(&["me"]), "it waits for what it lacks now");
    };
    tokio::select! {
        () = follow => unreachable!("the election goes on"),
        () = play => {}
    }
}
