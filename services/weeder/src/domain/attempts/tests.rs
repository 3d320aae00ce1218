use proptest::prelude::*;

use super::*;
use crate::domain::fixtures::{at, crashing};
use crate::domain::pods::CrashLoop;

/// A pod of the controller of `crashing`, created at this time.
fn pod(uid: &str, created: f64) -> Pod {
    let mut pod = crashing("pod", "kcm", uid, "1");
    pod.created = Some(at(created));
    pod
}

fn attempt(weeder: u64, found_at: f64, asked_at: f64) -> Attempt {
    Attempt {
        weeder,
        ends_at: at(1e5),
        found_at: at(found_at),
        asked_at: at(asked_at),
    }
}

fn permit(attempts: &Attempts, pod: &Pod, weeder: u64, now: f64) -> DeletionPermit {
    attempts.permit(pod, &attempt(weeder, now, now))
}

fn delete(attempts: &mut Attempts, pod: &Pod, weeder: u64, now: f64) {
    attempts.deleted(pod, &attempt(weeder, now, now), &Ok(Some(at(now))), at(now));
}

/// Weeder 2 deletes a replica of its third round. Before the answer comes, weeder 1 begins a round for the same
/// controller.
#[test]
fn a_deletion_under_way_takes_its_weeder_into_no_fourth_round() {
    let mut attempts = Attempts::default();
    for (uid, created, asked) in [("1", 0.0, 100.0), ("2", 101.0, 110.0), ("3", 111.0, 130.0)] {
        delete(&mut attempts, &pod(uid, created), 2, asked);
    }
    let (replica, later) = (pod("replica", 0.0), pod("later", 140.0));
    assert_eq!(permit(&attempts, &replica, 2, 200.0), DeletionPermit::Now);
    delete(&mut attempts, &pod("other", 150.0), 1, 200.0);
    delete(&mut attempts, &replica, 2, 200.0);
    assert_eq!(permit(&attempts, &later, 2, 201.0), DeletionPermit::Exhausted);
    assert_eq!(permit(&attempts, &later, 1, 201.0), DeletionPermit::Now);
}

#[test]
fn at_once_then_later_and_three_times_in_a_life() {
    let mut attempts = Attempts::default();
    assert_eq!(permit(&attempts, &pod("1", 0.0), 1, 100.0), DeletionPermit::Now);
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    assert_eq!(
        permit(&attempts, &pod("2", 101.0), 1, 105.0),
        DeletionPermit::At(at(110.0))
    );
    assert_eq!(permit(&attempts, &pod("2", 101.0), 1, 110.0), DeletionPermit::Now);
    delete(&mut attempts, &pod("2", 101.0), 1, 110.0);
    assert_eq!(
        permit(&attempts, &pod("3", 111.0), 1, 115.0),
        DeletionPermit::At(at(130.0))
    );
    delete(&mut attempts, &pod("3", 111.0), 1, 130.0);
    assert_eq!(
        permit(&attempts, &pod("4", 131.0), 1, 299.0),
        DeletionPermit::Exhausted
    );
    // The service became ready once more.
    assert_eq!(
        permit(&attempts, &pod("4", 131.0), 2, 140.0),
        DeletionPermit::At(at(170.0))
    );
    delete(&mut attempts, &pod("4", 131.0), 2, 170.0);
    assert_eq!(
        permit(&attempts, &pod("5", 171.0), 2, 171.0),
        DeletionPermit::At(at(210.0)),
        "40 s at most"
    );
}

#[test]
fn the_replicas_of_a_controller_are_deleted_together() {
    let mut attempts = Attempts::default();
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    for replica in ["2", "3"] {
        assert_eq!(
            permit(&attempts, &pod(replica, 50.0), 1, 101.0),
            DeletionPermit::Now
        );
        delete(&mut attempts, &pod(replica, 50.0), 1, 101.0);
    }
    assert_eq!(
        permit(&attempts, &pod("4", 102.0), 1, 103.0),
        DeletionPermit::At(at(110.0)),
        "one deletion"
    );
    let mut unknown = pod("5", 0.0);
    unknown.created = None;
    assert_eq!(
        permit(&attempts, &unknown, 1, 103.0),
        DeletionPermit::At(at(110.0))
    );
}

/// A recovering seed may answer none of them.
#[test]
fn replicas_whose_deletions_have_no_answer_are_one_attempt() {
    let mut attempts = Attempts::default();
    let replicas = ["1", "2", "3"].map(|uid| pod(uid, 0.0));
    let asked = attempt(1, 99.0, 100.0);
    let no_answer = Err(RequestFailure::Failed(String::new()));
    for replica in &replicas {
        attempts.deleted(replica, &asked, &no_answer, at(101.0));
    }
    let permit =
        |attempts: &Attempts, pod: &Pod, found_at: f64| attempts.permit(pod, &attempt(1, found_at, 102.0));
    for replica in &replicas {
        assert_eq!(permit(&attempts, replica, 99.0), DeletionPermit::Now);
    }
    let successor = pod("4", 101.5);
    assert_eq!(
        permit(&attempts, &successor, 101.9),
        DeletionPermit::At(at(111.0))
    );
    attempts.deleted(&replicas[1], &asked, &Ok(Some(at(101.0))), at(102.0));
    assert_eq!(permit(&attempts, &replicas[2], 99.0), DeletionPermit::Now);
    assert_eq!(
        attempts.expire(at(161.0)),
        1,
        "the answer of the second try counts"
    );
}

/// Two replicas will be deleted at once. One deletion has no answer; the other took place 5 s later, when the
/// successor of the first pod ran already.
#[test]
fn one_deletion_without_an_answer_leaves_the_time_of_the_round_unknown() {
    let answer = Ok(Some(at(105.0)));
    let no_answer = Err(RequestFailure::Failed(String::new()));
    for answers in [[&answer, &no_answer], [&no_answer, &answer]] {
        let mut attempts = Attempts::default();
        for (uid, answer) in ["1", "2"].into_iter().zip(answers) {
            attempts.deleted(&pod(uid, 0.0), &attempt(1, 99.0, 100.0), answer, at(105.0));
        }
        assert_eq!(
            permit(&attempts, &pod("3", 101.0), 1, 106.0),
            DeletionPermit::At(at(115.0)),
            "{answers:?}"
        );
    }
}

#[test]
fn only_the_weeder_that_deleted_a_pod_knows_its_successor() {
    let mut attempts = Attempts::default();
    let (successor, replica) = (pod("2", 101.0), pod("replica", 50.0));
    let is_successor =
        |attempts: &Attempts, pod, weeder| attempts.is_successor(pod, &attempt(weeder, 103.0, 103.0));
    assert!(!is_successor(&attempts, &successor, 1), "nothing was deleted");
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    assert!(is_successor(&attempts, &successor, 1));
    assert!(!is_successor(&attempts, &successor, 2), "another weeder");
    assert!(!is_successor(&attempts, &replica, 1), "a replica");
}

/// Two services that share dependants become ready.
#[test]
fn each_of_two_weeders_deletes_three_times() {
    let mut attempts = Attempts::default();
    let mut deleted = Vec::new();
    for second in 0..300 {
        let now = 100.0 + f64::from(second);
        let crashing = pod(&second.to_string(), now);
        let first = [2, 1]
            .into_iter()
            .find(|weeder| permit(&attempts, &crashing, *weeder, now) == DeletionPermit::Now);
        if let Some(weeder) = first {
            delete(&mut attempts, &crashing, weeder, now);
            deleted.push(weeder);
        }
    }
    assert_eq!(deleted, [2, 2, 2, 1, 1, 1]);
}

/// The same pod, in which these containers crash.
fn in_containers(mut pod: Pod, containers: &[&str]) -> Pod {
    let crash = pod.crashes.remove(0);
    let of = |container: &&str| CrashLoop {
        container: (*container).to_owned(),
        ..crash.clone()
    };
    pod.crashes = containers.iter().map(of).collect();
    pod
}

#[test]
fn each_container_has_its_pause_and_all_share_the_limit() {
    let mut attempts = Attempts::default();
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    let other = in_containers(pod("2", 101.0), &["sidecar"]);
    assert_eq!(
        permit(&attempts, &other, 1, 101.0),
        DeletionPermit::Now,
        "another container"
    );
    let both = in_containers(pod("2", 101.0), &["sidecar", "main"]);
    assert_eq!(
        permit(&attempts, &both, 1, 102.0),
        DeletionPermit::At(at(110.0)),
        "one of two was helped already"
    );
    delete(&mut attempts, &both, 1, 110.0);
    assert_eq!(
        permit(&attempts, &in_containers(pod("3", 111.0), &["sidecar"]), 1, 112.0),
        DeletionPermit::At(at(120.0)),
        "a deletion counts for all containers that crashed"
    );
    let third = in_containers(pod("3", 111.0), &["third"]);
    delete(&mut attempts, &third, 1, 112.0);
    let fourth = in_containers(pod("4", 113.0), &["fourth"]);
    assert_eq!(
        permit(&attempts, &fourth, 1, 114.0),
        DeletionPermit::Exhausted,
        "three for all containers together"
    );
}

#[test]
fn controllers_are_told_apart_and_so_are_pods_without_one() {
    let mut attempts = Attempts::default();
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    let mut elsewhere = pod("2", 101.0);
    elsewhere.owner.as_mut().unwrap().uid = "another".to_owned();
    assert_eq!(permit(&attempts, &elsewhere, 1, 101.0), DeletionPermit::Now);
    elsewhere.owner = None;
    delete(&mut attempts, &elsewhere, 1, 102.0);
    let mut again = elsewhere.clone();
    again.uid = "3".to_owned();
    again.created = Some(at(103.0));
    assert_eq!(
        permit(&attempts, &again, 1, 104.0),
        DeletionPermit::At(at(112.0)),
        "the same name"
    );
    again.key.name = "other".into();
    assert_eq!(permit(&attempts, &again, 1, 104.0), DeletionPermit::Now);
}

#[test]
fn a_weeder_takes_part_in_three_rounds_whoever_began_them() {
    let mut attempts = Attempts::default();
    let replica = pod("replica", 0.0);
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    delete(&mut attempts, &replica, 2, 100.5);
    for (uid, now) in [("2", 120.0), ("3", 150.0)] {
        delete(&mut attempts, &pod(uid, now - 5.0), 2, now);
    }
    let late = pod("late", 140.0);
    assert_eq!(
        permit(&attempts, &late, 2, 151.0),
        DeletionPermit::Now,
        "it finishes its third round"
    );
    delete(&mut attempts, &pod("4", 151.0), 1, 200.0);
    let late = pod("later", 190.0);
    assert_eq!(
        permit(&attempts, &late, 2, 201.0),
        DeletionPermit::Exhausted,
        "the round of another weeder would be its fourth"
    );
    assert_eq!(permit(&attempts, &late, 1, 201.0), DeletionPermit::Now);
}

/// The service fails again minutes later, and another replica crashes.
#[test]
fn another_outage_begins_another_round() {
    let mut attempts = Attempts::default();
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    attempts.expire(at(160.0));
    let replica = pod("replica", 50.0);
    assert_eq!(permit(&attempts, &replica, 2, 300.0), DeletionPermit::Now);
    delete(&mut attempts, &replica, 2, 300.0);
    assert_eq!(
        permit(&attempts, &pod("successor", 301.0), 2, 303.0),
        DeletionPermit::At(at(310.0))
    );
    assert_eq!(attempts.expire(at(360.0)), 1, "its use is judged");
}

/// One API server deletes the pod, and another one, whose clock is behind, creates its successor.
#[test]
fn a_successor_that_looks_older_waits() {
    let mut attempts = Attempts::default();
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    for created in [98.0, 99.0] {
        assert_eq!(
            permit(&attempts, &pod("2", created), 1, 103.0),
            DeletionPermit::At(at(110.0))
        );
    }
    assert_eq!(permit(&attempts, &pod("3", 97.0), 1, 103.0), DeletionPermit::Now);
}

#[test]
fn answers_in_another_order_make_no_replica_of_a_successor() {
    let mut attempts = Attempts::default();
    let (first, second) = (pod("1", 0.0), pod("2", 0.0));
    delete(&mut attempts, &second, 1, 103.0);
    let successor = pod("3", 101.0);
    delete(&mut attempts, &first, 1, 100.0);
    assert_eq!(
        permit(&attempts, &successor, 1, 104.0),
        DeletionPermit::At(at(113.0))
    );
}

#[test]
fn a_container_is_given_up_once_by_each_weeder() {
    let mut attempts = Attempts::default();
    let crashing = pod("1", 0.0);
    let controller = ControllerKey::of(&crashing);
    delete(&mut attempts, &crashing, 1, 100.0);
    delete(&mut attempts, &crashing, 2, 100.0);
    let mut give_up = |container: &str, weeder: u64| attempts.give_up(&controller, container, weeder);
    assert!(give_up("main", 1) && give_up("sidecar", 1) && give_up("main", 2));
    assert!(!give_up("main", 1) && !give_up("sidecar", 1) && !give_up("main", 2));
}

#[test]
fn success_resets_the_pause_but_not_the_limit() {
    let mut attempts = Attempts::default();
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    assert_eq!(attempts.next_due(), Some(at(160.0)));
    assert_eq!(attempts.expire(at(159.9)), 0);
    assert_eq!(attempts.expire(at(160.0)), 1);
    assert_eq!(attempts.expire(at(160.0)), 0, "once");
    for (uid, created, now) in [("2", 101.0, 161.0), ("3", 162.0, 230.0)] {
        assert_eq!(permit(&attempts, &pod(uid, created), 1, now), DeletionPermit::Now);
        delete(&mut attempts, &pod(uid, created), 1, now);
        attempts.expire(at(now + 60.0));
    }
    assert_eq!(
        permit(&attempts, &pod("4", 231.0), 1, 299.0),
        DeletionPermit::Exhausted
    );
    assert_eq!(permit(&attempts, &pod("4", 231.0), 2, 299.0), DeletionPermit::Now);
    attempts.expire(at(1e6));
    assert_eq!((attempts.records.len(), attempts.next_due()), (0, None));
}

#[test]
fn a_successor_that_crashes_within_a_minute_makes_a_deletion_useless() {
    let mut attempts = Attempts::default();
    delete(&mut attempts, &pod("1", 0.0), 1, 100.0);
    let mut replica = pod("2", 50.0);
    replica.restarted = vec!["main".to_owned()];
    let useless = |weeder| {
        let container = "main".to_owned();
        [UselessDeletion { weeder, container }]
    };
    assert_eq!(attempts.judge(&replica, at(101.0)), [], "it is no successor");
    let mut successor = pod("3", 101.0);
    successor.restarted.clear();
    assert_eq!(attempts.judge(&successor, at(110.0)), [], "it runs");
    successor.restarted = vec!["other".to_owned(), "main".to_owned()];
    assert_eq!(attempts.judge(&successor, at(120.0)), useless(1));
    assert_eq!(attempts.judge(&successor, at(121.0)), [], "once");
    assert_eq!(attempts.expire(at(200.0)), 0);
    delete(&mut attempts, &successor, 2, 201.0);
    let mut late = pod("4", 202.0);
    late.restarted = vec!["main".to_owned()];
    assert_eq!(attempts.judge(&late, at(261.0)), []);
    assert_eq!(attempts.expire(at(261.0)), 1);
}

proptest! {
    /// A pod that always crashes, seen at any time, by weeders that come at any time.
    #[test]
    fn never_more_than_three_in_a_life_and_never_sooner_than_allowed(
        steps in prop::collection::vec((1_u32..30, prop::bool::weighted(0.1)), 1..200)
    ) {
        let mut attempts = Attempts::default();
        let (mut now, mut weeder, mut created) = (100.0, 1, 0.0);
        let (mut in_life, mut last) = (0, None::<f64>);
        for (step, another) in steps {
            now += f64::from(step);
            if another {
                weeder += 1;
                in_life = 0;
            }
            let mut crashing = pod(&created.to_string(), created);
            crashing.restarted = vec!["main".to_owned()];
            attempts.judge(&crashing, at(now));
            attempts.expire(at(now));
            if permit(&attempts, &crashing, weeder, now) == DeletionPermit::Now {
                delete(&mut attempts, &crashing, weeder, now);
                in_life += 1;
                prop_assert!(in_life <= MAX_DELETIONS);
                prop_assert!(last.is_none_or(|last| now - last >= 10.0));
                last = Some(now);
                created = now;
            }
        }
    }
}
