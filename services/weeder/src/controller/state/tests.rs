use super::*;
use crate::domain::fixtures::{at, config, crashing, running, slice};
use crate::domain::weeder::DeletionResult;

/// Moves a pod or slice into another namespace.
macro_rules! in_shoot {
    ($namespace:expr, $object:expr) => {{
        let mut object = $object;
        object.key = NamespacedName::new($namespace, object.key.name.clone());
        object
    }};
}

fn etcd() -> NamespacedName {
    NamespacedName::new("shoot", "etcd")
}

/// A state in which etcd is not ready and this pod crashes, which was created in second 1.
fn waiting_for_etcd() -> WeederState {
    let mut state = WeederState::new(&config());
    state.slices_listed(None, vec![slice("etcd", false, 1, 5)], at(10));
    state.pod_applied(crashing("kube-apiserver", "apiserver", 1, 6), at(10));
    state
}

/// The names of the pods that the state gives for deletion, and that are deleted.
fn delete_all(state: &mut WeederState, now: i64) -> Vec<String> {
    let mut deleted = Vec::new();
    while let Some(deletion) = state.next(at(now)) {
        state.answered(&deletion, Ok(()), false, at(now));
        deleted.push(deletion.pod.key.name.to_string());
    }
    deleted
}

fn weeder(state: &WeederState) -> &Weeder {
    &state.weeders[&etcd()].weeder
}

#[test]
fn a_recovery_deletes_what_crashes_since_before_and_leaves_its_successor_alone() {
    let mut state = waiting_for_etcd();
    assert_eq!(delete_all(&mut state, 50), [""; 0]);
    state.slice_applied(slice("etcd", true, 100, 50), at(100));
    assert_eq!(weeder(&state).phase, Phase::Active);
    assert_eq!(delete_all(&mut state, 100), ["kube-apiserver"]);
    let mut successor = crashing("kube-apiserver-2", "apiserver", 101, 60);
    successor.owner = crashing("kube-apiserver", "apiserver", 1, 6).owner;
    state.pod_applied(successor, at(120));
    assert_eq!(delete_all(&mut state, 120), [""; 0]);
    let findings = state.take_findings();
    assert!(matches!(
        &findings[..],
        [
            Finding::Useless(..),
            Finding::LeftAlone(_, _, KeepReason::YoungerThanRecovery)
        ]
    ));
    assert!(weeder(&state).deletions[0].useless);
    assert_eq!(weeder(&state).left_alone.len(), 1);
    // One that was there before and crashes only now is deleted, too.
    state.pod_applied(crashing("late", "apiserver", 1, 70), at(130));
    assert_eq!(delete_all(&mut state, 130), ["late"]);
}

#[test]
fn a_recovery_ends_by_time_or_when_its_service_is_not_ready_again() {
    let mut state = waiting_for_etcd();
    state.slice_applied(slice("etcd", true, 100, 50), at(100));
    state.advance(at(400));
    assert_eq!(weeder(&state).phase, Phase::Active, "its last instant");
    assert!(state.next_weeder_due().unwrap() > at(400));
    state.advance(at(401));
    assert_eq!(weeder(&state).phase, Phase::Ended);
    assert_eq!(delete_all(&mut state, 401), [""; 0]);
    state.advance(at(461));
    assert!(state.weeders.is_empty());

    state.slice_applied(slice("etcd", false, 500, 60), at(500));
    state.slice_applied(slice("etcd", true, 510, 61), at(510));
    state.slice_applied(slice("etcd", false, 511, 62), at(511));
    assert_eq!(weeder(&state).phase, Phase::Cancelled);
    assert_eq!(delete_all(&mut state, 511), [""; 0]);
}

#[test]
fn who_gains_the_lead_acts_on_every_recovery_that_is_young() {
    let mut state = waiting_for_etcd();
    // Nobody leads, so nobody takes anything.
    state.slice_applied(slice("etcd", true, 100, 50), at(100));
    state.pod_applied(crashing("kube-apiserver", "apiserver", 1, 70), at(110));
    assert_eq!(delete_all(&mut state, 115), ["kube-apiserver"]);
    assert_eq!(delete_all(&mut state, 116), [""; 0]);
}

/// The slices and pods of 50 shoots, whose etcd recovered in seconds 100 to 149 and whose kube-apiserver crashes.
fn fifty_shoots() -> (Vec<Slice>, Vec<Pod>) {
    let shoot = |i: i64| {
        let name = format!("shoot--{i}");
        let pod = crashing("kube-apiserver", "apiserver", 1, 1_000);
        (
            in_shoot!(name.clone(), slice("etcd", true, 100 + i, 100)),
            in_shoot!(name, pod),
        )
    };
    (0..50).map(shoot).unzip()
}

/// The pods that a process deletes which starts then and finds this.
fn started(slices: &[Slice], pods: &[Pod], now: i64) -> Vec<String> {
    let mut state = WeederState::new(&config());
    for pod in pods {
        state.pod_applied(pod.clone(), at(now));
    }
    state.slices_listed(None, slices.to_vec(), at(now));
    delete_all(&mut state, now)
}

#[test]
fn services_that_recovered_while_no_weeder_ran_are_weeded_at_once_and_once() {
    let (slices, pods) = fifty_shoots();
    assert_eq!(started(&slices, &pods, 150).len(), 50);
    let successors: Vec<Pod> = pods
        .iter()
        .map(|pod| {
            in_shoot!(
                pod.key.namespace.clone(),
                crashing("kube-apiserver-2", "apiserver", 150, 2_000)
            )
        })
        .collect();
    assert_eq!(started(&slices, &successors, 170), [""; 0], "started again");
    assert_eq!(
        started(&slices, &pods, 420).len(),
        30,
        "20 recovered too long ago"
    );
}

#[test]
fn a_pod_that_crashes_for_its_own_reasons_is_deleted_once_for_each_change_of_the_slices_over_ten_starts() {
    let mut created = 1;
    let mut deleted = 0;
    for start in 0..10 {
        // The slice changes before every fifth start.
        let changed = 100 + start / 5 * 200;
        let now = 110 + start * 40;
        let pod = crashing("kube-apiserver", "apiserver", created, 1_000);
        if !started(&[slice("etcd", true, changed, 7)], &[pod], now).is_empty() {
            deleted += 1;
            created = now;
        }
    }
    assert_eq!(deleted, 2);
}

#[test]
fn a_service_without_a_date_that_was_found_ready_has_no_recovery() {
    let undated = Slice {
        triggered: None,
        ..slice("etcd", true, 100, 7)
    };
    let pod = crashing("kube-apiserver", "apiserver", 1, 1_000);
    assert_eq!(started(&[undated], &[pod], 110), [""; 0]);
}

#[test]
fn ready_for_and_a_fourth_recovery_in_a_minute_wait() {
    let mut config = config();
    config.ready_for = Duration::from_secs(5);
    let mut state = waiting_for_etcd();
    state.reconfigure(&config, at(20));
    for (i, second) in [100, 110, 120, 130].into_iter().enumerate() {
        state.slice_applied(slice("etcd", false, second - 5, 50), at(second - 5));
        state.slice_applied(slice("etcd", true, second, 50), at(second));
        assert_eq!(weeder(&state).phase, Phase::Queued);
        state.advance(at(second + 4));
        assert_eq!(weeder(&state).phase, Phase::Queued);
        state.advance(at(second + 5));
        let wanted = if i < 3 { Phase::Active } else { Phase::Queued };
        assert_eq!(weeder(&state).phase, wanted, "recovery {i}");
    }
    assert!(
        state
            .take_findings()
            .iter()
            .any(|finding| matches!(finding, Finding::HeldBack(_)))
    );
    assert_eq!(weeder(&state).recovery.deletes_from, at(165));
    state.pod_applied(crashing("kube-apiserver", "apiserver", 1, 70), at(140));
    assert_eq!(delete_all(&mut state, 164), [""; 0]);
    state.advance(at(165));
    assert_eq!(delete_all(&mut state, 165), ["kube-apiserver"]);
}

#[test]
fn answers_decide_when_a_pod_is_tried_again() {
    let begin = || {
        let mut state = waiting_for_etcd();
        state.slice_applied(slice("etcd", true, 100, 50), at(100));
        let deletion = state.next(at(100)).unwrap();
        assert_eq!(state.pending_deletions(), 1);
        assert!(state.is_current(&deletion, at(100)));
        (state, deletion)
    };
    let (mut state, deletion) = begin();
    state.put_back(&deletion, at(100));
    assert_eq!(state.next_due(), Some(at(100).after(LEAD_PAUSE)));
    for (failure, again) in [
        (RequestFailure::Failed("cut".to_owned()), Some(101)),
        (RequestFailure::Changed, Some(101)),
        (RequestFailure::Forbidden("no".to_owned()), Some(110)),
        (RequestFailure::Throttled(Some(Duration::from_secs(7))), Some(107)),
        (RequestFailure::Gone, None),
    ] {
        let (mut state, deletion) = begin();
        state.answered(&deletion, Err(&failure), false, at(100));
        assert_eq!(state.next_due(), again.map(at), "{failure}");
        let wanted = match failure {
            RequestFailure::Gone | RequestFailure::Changed => DeletionResult::Obsolete,
            _ => DeletionResult::Refused,
        };
        assert_eq!(weeder(&state).deletions[0].result, wanted);
    }
    // A refusal for being asked too often is one for all.
    let (mut state, deletion) = begin();
    state.pod_applied(crashing("another", "apiserver", 1, 8), at(100));
    let throttled = RequestFailure::Throttled(Some(Duration::from_secs(7)));
    state.answered(&deletion, Err(&throttled), false, at(100));
    assert!(state.next(at(106)).is_none());
    assert_eq!(delete_all(&mut state, 107).len(), 2);
    // A newer state of the pod is decided anew.
    let (mut state, deletion) = begin();
    state.pod_applied(crashing("kube-apiserver", "apiserver", 1, 80), at(101));
    assert!(!state.is_current(&deletion, at(101)));
    state.put_back(&deletion, at(101));
    assert_eq!(state.next(at(102)).unwrap().pod.resource_version, "80");
}

#[test]
fn a_deleted_pod_is_not_asked_for_again_and_one_kept_back_is_for_the_next_recovery() {
    let mut state = waiting_for_etcd();
    state.slice_applied(slice("etcd", true, 100, 50), at(100));
    let deletion = state.next(at(100)).unwrap();
    state.answered(&deletion, Ok(()), true, at(100));
    state.pod_applied(crashing("kube-apiserver", "apiserver", 1, 80), at(101));
    assert!(state.next(at(101)).is_none(), "the mode is observe");
    state.slice_applied(slice("etcd", false, 110, 90), at(110));
    state.slice_applied(slice("etcd", true, 120, 91), at(120));
    let deletion = state.next(at(120)).unwrap();
    state.answered(&deletion, Ok(()), false, at(120));
    state.pod_applied(crashing("kube-apiserver", "apiserver", 1, 95), at(121));
    assert!(state.next(at(130)).is_none());
}

#[test]
fn pods_that_run_or_are_gone_are_forgotten() {
    let mut state = waiting_for_etcd();
    let pod = crashing("kube-apiserver", "apiserver", 1, 6);
    let query = PodQuery::Labels("role in (apiserver)".into());
    let other = PodQuery::Labels("role in (other)".into());
    state.pod_removed(&pod.key, &other);
    state.pods_synced(&other, &BTreeSet::new());
    assert_eq!(state.crashing_pods(), 1, "it is gone from another watch");
    state.pods_synced(&query, &BTreeSet::from([pod.key.clone()]));
    assert_eq!(state.crashing_pods(), 1);
    state.pods_synced(&query, &BTreeSet::new());
    assert_eq!(state.crashing_pods(), 0);
    state.pod_applied(pod.clone(), at(11));
    state.pod_removed(&pod.key, &query);
    assert_eq!(state.crashing_pods(), 0);
    state.pod_applied(pod.clone(), at(12));
    state.pod_applied(running(pod), at(13));
    state.pod_applied(crashing("stranger", "other", 1, 7), at(14));
    assert_eq!((state.crashing_pods(), state.pending_deletions()), (0, 0));
}

#[test]
fn a_service_that_the_configuration_drops_is_forgotten() {
    let mut state = waiting_for_etcd();
    state.slice_applied(slice("etcd", true, 100, 50), at(100));
    let mut narrow = config();
    narrow.services.remove("etcd");
    state.reconfigure(&narrow, at(101));
    assert_eq!(weeder(&state).phase, Phase::Cancelled);
    assert!(!state.has_service(&etcd()));
    assert_eq!(delete_all(&mut state, 101), [""; 0]);
    let watched: Vec<_> = state.watched_services.borrow().iter().cloned().collect();
    assert_eq!(watched, ["kube-apiserver".into()]);
    state.reconfigure(&config(), at(102));
    // Named again, it is found ready: its slices say since when.
    state.slices_listed(None, vec![slice("etcd", true, 100, 50)], at(103));
    assert_eq!(delete_all(&mut state, 103), ["kube-apiserver"]);
}
