use proptest::prelude::*;

use super::*;
use crate::domain::fixtures::{at, crashing, dependants, running};
use crate::domain::weeder::{DeletionResult, KEPT_DELETIONS};

const LIFE: Duration = Duration::from_secs(300);

fn key(service: &str) -> ServiceKey {
    ServiceKey::new("shoot", service)
}

/// A weeder of etcd that started at 0 and whose first list is under way.
fn started() -> (Weeding, List) {
    let mut weeding = Weeding::default();
    weeding.start(key("etcd"), dependants("etcd"), LIFE, at(0.0));
    let list = list(&mut weeding, 0.0);
    (weeding, list)
}

fn list(weeding: &mut Weeding, now: f64) -> List {
    match weeding.next(at(now)) {
        Some(Task::List(list)) => list,
        other => panic!("no list: {other:?}"),
    }
}

fn delete(weeding: &mut Weeding, now: f64) -> Delete {
    match weeding.next(at(now)) {
        Some(Task::Delete(delete)) => delete,
        other => panic!("no deletion: {other:?}"),
    }
}

fn nothing(weeding: &mut Weeding, now: f64) {
    let next = weeding.next(at(now));
    assert!(next.is_none(), "{next:?}");
}

fn weeder(weeding: &Weeding, service: &str) -> Weeder {
    weeding.weeders[&key(service)].weeder.clone()
}

fn results(weeder: &Weeder) -> Vec<(u64, DeletionResult)> {
    weeder
        .deletions
        .iter()
        .map(|deletion| (deletion.sequence, deletion.result))
        .collect()
}

#[test]
fn a_weeder_lives_exactly_its_time_and_is_forgotten_a_minute_later() {
    let mut weeding = Weeding::default();
    weeding.start(key("etcd"), dependants("etcd"), LIFE, at(0.0));
    assert_eq!(weeder(&weeding, "etcd").state, State::Queued);
    let list = list(&mut weeding, 1.0);
    assert_eq!(weeder(&weeding, "etcd").state, State::Active);
    weeding.listed(&list, Ok(vec![]), at(1.5));
    nothing(&mut weeding, 299.999_999);
    assert_eq!(
        weeder(&weeding, "etcd").remaining(at(299.0)),
        Duration::from_secs(1)
    );
    assert_eq!(weeding.next_due(true), Some(at(300.0)));
    nothing(&mut weeding, 300.0);
    assert_eq!(weeder(&weeding, "etcd").state, State::Ended);
    assert_eq!(weeder(&weeding, "etcd").remaining(at(300.0)), Duration::ZERO);
    assert!(weeding.watches().is_empty(), "nobody needs a watch");
    weeding.take_changed();
    nothing(&mut weeding, 359.9);
    assert!(weeding.take_changed().is_empty());
    nothing(&mut weeding, 360.0);
    assert!(matches!(&weeding.take_changed()[..], [(_, None)]));
    assert_eq!(weeding.next_due(true), None);
}

#[test]
fn a_crash_loop_is_deleted_and_again_when_the_new_pod_crashes() {
    let (mut weeding, list) = started();
    weeding.listed(&list, Ok(vec![crashing("api", "apiserver", "1", "10")]), at(0.1));
    let first = delete(&mut weeding, 0.1);
    assert_eq!(
        (first.pod.uid.as_str(), first.since, first.found),
        ("1", at(0.0), Found::AtStart)
    );
    weeding.seen(crashing("api", "apiserver", "1", "10"), at(0.15));
    nothing(&mut weeding, 0.15);
    weeding.deleted(&first, &Ok(()), at(0.2));
    weeding.seen(crashing("api", "apiserver", "1", "10"), at(0.3));
    nothing(&mut weeding, 0.3);
    weeding.gone(&first.pod.key);
    weeding.seen(running(crashing("api", "apiserver", "2", "11")), at(1.0));
    nothing(&mut weeding, 1.0);
    weeding.seen(crashing("api", "apiserver", "2", "12"), at(20.0));
    let second = delete(&mut weeding, 20.5);
    assert_eq!(
        (second.pod.uid.as_str(), second.since, second.found),
        ("2", at(20.0), Found::Later)
    );
    weeding.deleted(&second, &Ok(()), at(20.6));
    let weeder = weeder(&weeding, "etcd");
    assert_eq!(weeder.deleted, 2);
    assert_eq!(
        results(&weeder),
        [(1, DeletionResult::Deleted), (2, DeletionResult::Deleted)]
    );
    assert_eq!(
        weeder.deletions[0].message,
        "Container main was waiting in CrashLoopBackOff after 5 restarts and service etcd is ready again."
    );
}

#[test]
fn a_successor_that_crashes_before_the_deletion_is_answered_is_not_lost() {
    let (mut weeding, list) = started();
    weeding.listed(
        &list,
        Ok(vec![crashing("etcd-0", "apiserver", "1", "10")]),
        at(0.1),
    );
    let first = delete(&mut weeding, 0.1);
    weeding.gone(&first.pod.key);
    weeding.seen(crashing("etcd-0", "apiserver", "2", "20"), at(5.0));
    nothing(&mut weeding, 5.0);
    weeding.deleted(&first, &Ok(()), at(6.0));
    assert_eq!(delete(&mut weeding, 6.0).pod.uid, "2");
}

#[test]
fn only_dependants_in_the_namespace_of_a_weeder_that_lives() {
    let (mut weeding, list) = started();
    let mut elsewhere = crashing("api", "apiserver", "1", "10");
    elsewhere.key.namespace = "other".into();
    let mut deleting = crashing("c", "apiserver", "3", "10");
    deleting.deleting = true;
    let pods = vec![elsewhere, crashing("b", "kcm", "2", "10"), deleting];
    weeding.listed(&list, Ok(pods), at(0.1));
    nothing(&mut weeding, 0.1);
    weeding.seen(crashing("d", "apiserver", "4", "10"), at(299.9));
    nothing(&mut weeding, 300.0);
    weeding.seen(crashing("e", "apiserver", "5", "10"), at(300.1));
    nothing(&mut weeding, 300.1);
    assert_eq!(weeding.pending_deletions(), 0);
}

#[test]
fn a_pod_that_recovers_before_its_turn_is_left_alone() {
    let (mut weeding, list) = started();
    let pod = crashing("api", "apiserver", "1", "10");
    weeding.listed(&list, Ok(vec![pod.clone()]), at(0.1));
    weeding.seen(running(pod), at(0.2));
    nothing(&mut weeding, 0.2);
}

#[test]
fn a_pod_that_changed_is_looked_at_again() {
    let (mut weeding, list) = started();
    weeding.listed(&list, Ok(vec![crashing("api", "apiserver", "1", "10")]), at(0.1));
    let first = delete(&mut weeding, 0.1);
    weeding.deleted(&first, &Err(Failure::Changed), at(0.2));
    nothing(&mut weeding, 0.2);
    let again = self::list(&mut weeding, 0.45);
    weeding.listed(&again, Ok(vec![crashing("api", "apiserver", "1", "11")]), at(0.5));
    let second = delete(&mut weeding, 0.5);
    assert_eq!(second.pod.resource_version, "11");
    weeding.seen(crashing("api", "apiserver", "1", "12"), at(0.6));
    weeding.deleted(&second, &Err(Failure::Changed), at(0.7));
    let third = delete(&mut weeding, 0.7);
    assert_eq!(third.pod.resource_version, "12", "the watch was faster");
    weeding.deleted(&third, &Err(Failure::Gone), at(0.8));
    nothing(&mut weeding, 299.0);
    assert_eq!(weeder(&weeding, "etcd").deleted, 0);
    assert!(
        results(&weeder(&weeding, "etcd"))
            .iter()
            .all(|(_, r)| *r == DeletionResult::Obsolete)
    );
}

#[test]
fn a_refused_deletion_is_tried_again_and_remembered_once() {
    let (mut weeding, list) = started();
    let pods = vec![
        crashing("a", "apiserver", "1", "10"),
        crashing("b", "apiserver", "2", "10"),
    ];
    weeding.listed(&list, Ok(pods), at(0.1));
    let first = delete(&mut weeding, 0.1);
    weeding.deleted(&first, &Err(Failure::Forbidden("grant it".to_owned())), at(0.2));
    let other = delete(&mut weeding, 0.2);
    assert_eq!(other.pod.uid, "2", "the others go on");
    weeding.deleted(&other, &Ok(()), at(0.3));
    nothing(&mut weeding, 10.1);
    let again = delete(&mut weeding, 10.2);
    weeding.deleted(&again, &Err(Failure::Forbidden("grant it".to_owned())), at(10.3));
    assert_eq!(
        results(&weeder(&weeding, "etcd")),
        [(1, DeletionResult::Refused), (2, DeletionResult::Deleted)]
    );
    let granted = delete(&mut weeding, 20.3);
    weeding.deleted(&granted, &Ok(()), at(20.4));
    assert_eq!(
        results(&weeder(&weeding, "etcd"))[2],
        (3, DeletionResult::Deleted)
    );
}

#[test]
fn throttling_pauses_everything_but_the_clock() {
    let (mut weeding, first) = started();
    let pods = vec![
        crashing("a", "apiserver", "1", "10"),
        crashing("b", "apiserver", "2", "10"),
    ];
    weeding.listed(&first, Ok(pods), at(0.1));
    let throttled = delete(&mut weeding, 0.1);
    weeding.deleted(
        &throttled,
        &Err(Failure::Throttled(Some(Duration::from_secs(3)))),
        at(1.0),
    );
    weeding.start(
        key("kube-apiserver"),
        dependants("kube-apiserver"),
        Duration::from_secs(2),
        at(1.0),
    );
    nothing(&mut weeding, 3.9);
    assert_eq!(weeder(&weeding, "kube-apiserver").state, State::Ended);
    assert_eq!(weeding.next_due(true), Some(at(4.0)));
    assert_eq!(delete(&mut weeding, 4.0).pod.uid, "2");
    assert_eq!(delete(&mut weeding, 4.0).pod.uid, "1");
}

#[test]
fn a_failed_list_is_tried_again() {
    let (mut weeding, first) = started();
    weeding.listed(
        &first,
        Err(Failure::Failed("no answer within 10s".to_owned())),
        at(10.0),
    );
    assert_eq!(
        weeder(&weeding, "etcd").message,
        "The dependants cannot be listed, trying again: no answer within 10s."
    );
    nothing(&mut weeding, 10.9);
    let second = list(&mut weeding, 11.0);
    weeding.listed(&second, Ok(vec![crashing("a", "apiserver", "1", "10")]), at(11.1));
    assert_eq!(weeder(&weeding, "etcd").message, "It follows the dependants.");
    let delete = delete(&mut weeding, 11.1);
    assert_eq!(
        (delete.found, delete.since),
        (Found::AtStart, at(0.0)),
        "it has been waiting since the start"
    );
}

#[test]
fn a_new_transition_replaces_the_weeder() {
    let (mut weeding, old) = started();
    weeding.listed(&old, Ok(vec![crashing("a", "apiserver", "1", "10")]), at(0.1));
    let under_way = delete(&mut weeding, 0.1);
    weeding.start(key("etcd"), dependants("etcd"), LIFE, at(200.0));
    let new = list(&mut weeding, 200.0);
    weeding.deleted(&under_way, &Ok(()), at(200.1));
    let replaced = weeder(&weeding, "etcd");
    assert_eq!(
        (replaced.started_at, replaced.deleted),
        (at(200.0), 0),
        "the old one's deeds are its own"
    );
    weeding.listed(&new, Ok(vec![]), at(200.2));
    nothing(&mut weeding, 300.0);
    assert_eq!(
        weeder(&weeding, "etcd").state,
        State::Active,
        "the old end is not its end"
    );
    nothing(&mut weeding, 500.0);
    assert_eq!(weeder(&weeding, "etcd").state, State::Ended);
    assert!(weeding.watches().is_empty());
}

#[test]
fn a_cancelled_weeder_asks_for_nothing() {
    let (mut weeding, list) = started();
    weeding.listed(&list, Ok(vec![crashing("a", "apiserver", "1", "10")]), at(0.1));
    weeding.cancel(Stop::NamespaceEnded, at(5.0), |_| true);
    nothing(&mut weeding, 5.0);
    let weeder = weeder(&weeding, "etcd");
    assert_eq!((weeder.state, weeder.ends_at), (State::Cancelled, at(5.0)));
    assert_eq!(weeding.next_due(true), Some(at(65.0)));
    weeding.cancel(Stop::NotOwned, at(6.0), |_| true);
    assert_eq!(weeding.next_due(true), Some(at(65.0)), "once is enough");
}

#[test]
fn a_watch_that_opens_makes_its_weeders_look_again() {
    let (mut weeding, first) = started();
    let query = weeding.watches().into_iter().next().unwrap();
    weeding.look_again(&query, at(0.05));
    nothing(&mut weeding, 0.05);
    weeding.listed(&first, Ok(vec![]), at(0.1));
    let second = list(&mut weeding, 0.1);
    weeding.listed(&second, Ok(vec![]), at(0.2));
    nothing(&mut weeding, 0.2);
    weeding.look_again(&Query::Labels("role=other".into()), at(1.0));
    nothing(&mut weeding, 1.0);
    weeding.look_again(&query, at(2.0));
    list(&mut weeding, 2.0);
}

#[test]
fn the_youngest_weeder_takes_a_pod_that_several_select() {
    let (mut weeding, _) = started();
    weeding.start(
        key("kube-apiserver"),
        dependants("kube-apiserver"),
        LIFE,
        at(10.0),
    );
    weeding.seen(crashing("a", "apiserver", "1", "10"), at(11.0));
    assert_eq!(delete(&mut weeding, 11.0).key, key("kube-apiserver"));
    nothing(&mut weeding, 310.0);
    assert_eq!(weeding.count(State::Ended), 2);
}

#[test]
fn other_dependants_are_looked_at_once_they_are_configured() {
    let (mut weeding, list) = started();
    weeding.listed(&list, Ok(vec![]), at(0.1));
    weeding.reselect(&key("etcd"), &dependants("etcd"), at(1.0));
    nothing(&mut weeding, 1.0);
    weeding.reselect(&key("etcd"), &dependants("kube-apiserver"), at(2.0));
    assert_eq!(
        self::list(&mut weeding, 2.0).dependants,
        dependants("kube-apiserver")
    );
    weeding.seen(crashing("kcm", "kcm", "1", "10"), at(3.0));
    assert_eq!(delete(&mut weeding, 3.0).pod.uid, "1");
    assert_eq!(weeding.watches().len(), 1);
}

#[test]
fn few_deletions_are_remembered() {
    let (mut weeding, _) = started();
    for i in 0..100 {
        weeding.seen(
            crashing(&i.to_string(), "apiserver", &i.to_string(), "10"),
            at(1.0),
        );
        let delete = delete(&mut weeding, 1.0);
        weeding.deleted(&delete, &Ok(()), at(1.0));
    }
    let weeder = weeder(&weeding, "etcd");
    assert_eq!((weeder.deleted, weeder.deletions.len()), (100, KEPT_DELETIONS));
    assert_eq!(weeder.deletions.back().unwrap().sequence, 100);
}

#[derive(Debug, Clone)]
enum Step {
    Start(&'static str),
    Cancel,
    Seen {
        name: u8,
        uid: u8,
        version: u8,
        crashes: bool,
        role: &'static str,
    },
    Gone(u8),
    LookAgain,
    Answer(usize, u8),
    Wait(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let service = prop::sample::select(vec!["etcd", "kube-apiserver"]);
    let role = prop::sample::select(vec!["apiserver", "kcm", "other"]);
    let seen = (0..3_u8, 0..3_u8, 0..5_u8, prop::bool::weighted(0.8), role);
    let step = prop_oneof![
        2 => service.prop_map(Step::Start),
        1 => Just(Step::Cancel),
        8 => seen.prop_map(|(name, uid, version, crashes, role)| Step::Seen { name, uid, version, crashes, role }),
        1 => (0..3_u8).prop_map(Step::Gone),
        1 => Just(Step::LookAgain),
        8 => (any::<usize>(), 0..6_u8).prop_map(|(which, how)| Step::Answer(which, how)),
        3 => (0..20_000_u16).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..120)
}

fn answer(how: u8) -> Result<(), Failure> {
    match how {
        0 => Err(Failure::Gone),
        1 => Err(Failure::Changed),
        2 => Err(Failure::Forbidden(String::new())),
        3 => Err(Failure::Throttled(None)),
        4 => Err(Failure::Failed(String::new())),
        _ => Ok(()),
    }
}

proptest! {
    /// Whatever happens in whatever order: only dependants of a weeder that lives are deleted, one attempt at a time
    /// for each name, one list at a time for each start; and when everything is over, nothing is left.
    #[test]
    fn never_a_wrong_task_and_nothing_left_at_the_end(steps in steps()) {
        let mut weeding = Weeding::default();
        let mut now = at(0.0);
        let mut under_way: Vec<Task> = Vec::new();
        for step in steps {
            match step {
                Step::Start(service) => weeding.start(key(service), dependants(service), LIFE, now),
                Step::Cancel => weeding.cancel(Stop::NotOwned, now, |key| &*key.service == "etcd"),
                Step::Seen { name, uid, version, crashes, role } => {
                    // A UID belongs to one name.
                    let uid = format!("{name}-{uid}");
                    let pod = crashing(&name.to_string(), role, &uid, &version.to_string());
                    weeding.seen(if crashes { pod } else { running(pod) }, now);
                }
                Step::Gone(name) => {
                    let key = PodKey { namespace: "shoot".into(), name: name.to_string().into() };
                    weeding.gone(&key);
                }
                Step::LookAgain => weeding.look_again(&Query::All, now),
                Step::Wait(millis) => now = now.after(Duration::from_millis(millis.into())),
                Step::Answer(which, how) if !under_way.is_empty() => {
                    match under_way.remove(which % under_way.len()) {
                        Task::List(list) => weeding.listed(&list, answer(how).map(|()| vec![]), now),
                        Task::Delete(delete) => weeding.deleted(&delete, &answer(how), now),
                    }
                }
                Step::Answer(..) => {}
            }
            while let Some(task) = weeding.next(now) {
                match &task {
                    Task::Delete(delete) => {
                        let entry = &weeding.weeders[&delete.key];
                        prop_assert!(entry.weeder.is_live() && now < entry.weeder.ends_at);
                        prop_assert!(entry.weeder.dependants.include(&delete.pod.labels));
                        prop_assert!(delete.pod.to_weed().is_some());
                        let same = |task: &Task| matches!(task, Task::Delete(d) if d.pod.key == delete.pod.key);
                        prop_assert!(!under_way.iter().any(same), "two attempts at one time");
                    }
                    Task::List(list) => {
                        let same = |task: &Task| matches!(task, Task::List(l) if l.start == list.start);
                        prop_assert!(!under_way.iter().any(same), "two lists at one time");
                    }
                }
                under_way.push(task);
            }
            let due = weeding.next_due(true);
            prop_assert!(due.is_none_or(|due| due > now), "due at {due:?}, but nothing came at {now:?}");
            prop_assert!(weeding.watches().len() <= 2);
        }
        for task in under_way {
            match task {
                Task::List(list) => weeding.listed(&list, Ok(vec![]), now),
                Task::Delete(delete) => weeding.deleted(&delete, &Ok(()), now),
            }
        }
        weeding.expire(now.after(LIFE));
        weeding.expire(now.after(LIFE).after(KEPT_AFTER_END));
        prop_assert!(weeding.weeders.is_empty() && weeding.watches().is_empty());
        prop_assert_eq!(weeding.pending_deletions(), 0);
        prop_assert_eq!(weeding.next_due(true), None);
    }
}

/// A weeder that was cancelled while it looked has no reason to look again.
#[test]
fn a_list_that_comes_back_after_the_end_leads_to_nothing() {
    let (mut weeding, list) = started();
    weeding.look_again(&Query::All, at(0.1));
    weeding.cancel(Stop::NotOwned, at(0.2), |_| true);
    weeding.listed(&list, Ok(vec![crashing("a", "apiserver", "1", "10")]), at(0.3));
    nothing(&mut weeding, 0.3);
    assert_eq!(weeding.next_due(true), Some(at(60.2)));
}

#[test]
fn a_weeder_at_rest_neither_looks_nor_deletes() {
    let (mut weeding, list) = started();
    weeding.rest(&key("etcd"));
    weeding.listed(&list, Err(Failure::Failed(String::new())), at(0.1));
    weeding.look_again(&Query::All, at(0.2));
    weeding.seen(crashing("a", "apiserver", "1", "10"), at(0.3));
    nothing(&mut weeding, 299.0);
    assert_eq!(
        weeder(&weeding, "etcd").message,
        "Service etcd is not ready: nothing is deleted until it is."
    );
    nothing(&mut weeding, 300.0);
    assert_eq!(weeder(&weeding, "etcd").state, State::Ended);
}
