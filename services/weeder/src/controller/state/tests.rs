mod histories;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use proptest::prelude::*;
use watchdog_api::config::UnknownFields;
use watchdog_runtime::args::LogFormat;
use watchdog_runtime::telemetry;
use watchdog_runtime::work_queue::WorkItem;
use watchdog_test_support::in_process::CapturedOutput;

use super::*;
use crate::domain::fixtures::{at, config, crashing, slice};
use crate::domain::readiness::Endpoints;
use crate::domain::rule::KeepReason;

fn new(config: WeederConfig) -> WeederState {
    WeederState::new(Arc::new(config))
}

fn etcd() -> NamespacedName {
    NamespacedName::new("shoot", "etcd")
}

/// Moves a pod or slice into another namespace.
macro_rules! in_shoot {
    ($namespace:expr, $object:expr) => {{
        let mut object = $object;
        object.key = NamespacedName::new($namespace, object.key.name.clone());
        object
    }};
}

impl WeederState {
    fn slice(&mut self, slice: Slice, now: i64) {
        self.slices_updated(None, WatchUpdate::Applied(slice), at(now));
    }

    fn list(&mut self, slices: Vec<Slice>, now: i64) {
        self.slices_updated(None, WatchUpdate::Listed(slices), at(now));
    }

    /// A pod in the watch with the one selector of kube-apiserver, which sees that of etcd, too.
    fn pod(&mut self, update: WatchUpdate<Pod>, now: i64) {
        let selector = config().services["kube-apiserver"][0].clone();
        self.pods_updated(&selector, update, at(now));
    }

    fn crash(&mut self, pod: Pod, now: i64) {
        self.pod(WatchUpdate::Applied(pod), now);
    }

    /// The names of the pods that are deleted.
    fn delete_all(&mut self, now: i64) -> Vec<String> {
        let namespaces: BTreeSet<_> = self.pods.keys().map(|key| key.namespace.clone()).collect();
        let mut deleted = Vec::new();
        for namespace in namespaces {
            while let Some(deletion) = self.take(&namespace, at(now)) {
                self.answered(&deletion, &DeletionResult::Deleted, at(now));
                deleted.push(deletion.pod.key.name.to_string());
            }
        }
        deleted
    }

    /// True if, after the tick at that time, a pod must be deleted.
    fn is_due(&mut self, now: i64) -> bool {
        self.tick(at(now));
        self.due("shoot", at(now)).is_some()
    }

    fn weeder(&self) -> Arc<Weeder> {
        self.weeders.get(&etcd()).unwrap()
    }

    fn is_ready(&self, service: &str) -> Option<bool> {
        let state = self.services.get(&NamespacedName::new("shoot", service))?;
        Some(state.endpoints.is_ready())
    }
}

/// A state in which etcd is not ready and this pod crashes, which was created in second 1.
fn waiting_for_etcd() -> WeederState {
    let mut state = new(config());
    state.list(vec![slice("etcd", false, 1, 5)], 10);
    state.crash(crashing("kube-apiserver", "apiserver", 1, 6), 10);
    state
}

/// The same after etcd has recovered in second 100.
fn recovered() -> WeederState {
    let mut state = waiting_for_etcd();
    assert_eq!(state.delete_all(50), [""; 0]);
    state.slice(slice("etcd", true, 100, 50), 100);
    assert_eq!(state.weeder().phase, Phase::Active);
    state
}

#[test]
fn a_recovery_deletes_what_crashes_since_before_and_leaves_its_successor_alone() {
    let mut state = recovered();
    assert_eq!(state.delete_all(100), ["kube-apiserver"]);
    let mut successor = crashing("kube-apiserver-2", "apiserver", 101, 60);
    successor.owner = crashing("kube-apiserver", "apiserver", 1, 6).owner;
    state.crash(successor, 120);
    assert_eq!(state.delete_all(120), [""; 0]);
    let reasons: Vec<_> = { state.review("shoot", at(120)) }
        .iter()
        .map(|notice| notice.reason)
        .collect();
    assert_eq!(reasons, ["CrashesAlthoughServiceIsReady"]);
    assert!(state.weeder().deletions[0].useless_by.is_some());
    assert_eq!(
        state.weeder().left_alone[0].reason,
        KeepReason::YoungerThanRecovery
    );
    // One that was there before and crashes only now is deleted, too.
    state.crash(crashing("late", "apiserver", 1, 70), 130);
    assert_eq!(state.delete_all(130), ["late"]);
}

#[test]
fn a_recovery_ends_by_time_or_when_its_service_is_not_ready_again() {
    let mut state = recovered();
    assert!(state.is_due(400), "its last instant");
    assert!(!state.is_due(401));
    assert_eq!(state.weeder().phase, Phase::Ended);
    assert_eq!(state.delete_all(401), [""; 0]);
    state.tick(at(461));
    assert_eq!(state.weeders.keys(), []);

    for (second, ready) in [(500, false), (510, true), (511, false)] {
        state.slice(slice("etcd", ready, second, 60), second);
    }
    assert_eq!(state.weeder().phase, Phase::Cancelled);
    assert_eq!(state.delete_all(511), [""; 0]);
}

/// The watch was broken while the service was not ready.
#[test]
fn a_recovery_that_only_a_list_shows_counts_once() {
    let mut state = recovered();
    let gone = |state: &mut WeederState, name| {
        state.pod(WatchUpdate::Removed(NamespacedName::new("shoot", name)), 150);
    };
    assert_eq!(state.delete_all(100), ["kube-apiserver"]);
    gone(&mut state, "kube-apiserver");
    state.crash(crashing("second", "apiserver", 150, 60), 160);
    let unchanged = slice("etcd", true, 100, 50);
    let undated = Slice {
        triggered: None,
        ..slice("etcd", true, 200, 90)
    };
    let of_a_backup = slice("etcd", true, 90, 50);
    for slice in [unchanged, of_a_backup, undated] {
        state.list(vec![slice], 201);
        assert_eq!(state.weeder().recovery.at, at(100));
        assert_eq!(state.services.get(&etcd()).unwrap().since, at(100));
        assert_eq!(state.delete_all(201), [""; 0]);
    }
    let recovered_again = slice("etcd", true, 200, 90);
    state.list(vec![recovered_again.clone()], 202);
    assert_eq!(
        (state.weeder().recovery.at, state.weeder().phase),
        (at(200), Phase::Active)
    );
    assert_eq!(state.services.get(&etcd()).unwrap().since, at(200));
    assert_eq!(state.delete_all(202), ["second"]);
    gone(&mut state, "second");
    state.crash(crashing("third", "apiserver", 201, 95), 203);
    state.list(vec![recovered_again], 204);
    assert_eq!(state.delete_all(204), [""; 0]);

    // One of its slices stayed ready, and so did the service.
    let other = |second| Slice {
        key: NamespacedName::new("shoot", "etcd-2"),
        ..slice("etcd", true, second, 97)
    };
    state.slice(other(205), 205);
    state.list(vec![slice("etcd", true, 200, 90), other(210)], 211);
    assert_eq!(state.weeder().recovery.at, at(200));
    state.list(vec![slice("etcd", true, 220, 99), other(222)], 230);
    assert_eq!(state.weeder().recovery.at, at(220));

    // Whatever has changed, it was too long ago.
    state.list(vec![slice("etcd", true, 240, 101), other(240)], 1_000);
    assert_eq!(state.services.get(&etcd()).unwrap().since, at(220));
}

#[test]
fn a_slice_that_was_that_of_another_service_does_not_show_that_its_service_stayed_ready() {
    let mut state = recovered();
    let moved = |service: &str| Slice {
        key: NamespacedName::new("shoot", "moved"),
        ..slice(service, true, 90, 40)
    };
    state.slice(moved("kube-apiserver"), 101);
    state.list(vec![slice("etcd", true, 200, 90), moved("etcd")], 201);
    assert_eq!(state.weeder().recovery.at, at(90));
}

/// One of several endpoints has become ready again, for example, which moves the date of the slice.
#[test]
fn a_service_that_stayed_ready_has_no_recovery_when_the_configuration_changes() {
    let mut state = new(config());
    state.list(vec![slice("etcd", true, 1, 5)], 1_000);
    state.crash(crashing("kube-apiserver", "apiserver", 1, 6), 1_000);
    let moved = slice("etcd", true, 1_100, 50);
    state.slice(moved.clone(), 1_100);
    state.configure(Arc::new(config()));
    state.list(vec![moved], 1_110);
    state.pod(
        WatchUpdate::Listed(vec![crashing("kube-apiserver", "apiserver", 1, 6)]),
        1_110,
    );
    assert_eq!(state.delete_all(1_110), [""; 0]);
}

#[test]
fn a_recovery_goes_on_when_the_configuration_changes() {
    let mut state = waiting_for_etcd();
    let undated = Slice {
        triggered: None,
        ..slice("etcd", true, 100, 50)
    };
    state.slice(undated.clone(), 100);
    let longer = WeederConfig {
        watch_duration: Duration::from_secs(600),
        ..config()
    };
    state.configure(Arc::new(longer));
    state.list(vec![undated], 110);
    assert_eq!(state.weeder().recovery.at, at(100));
    let pod = crashing("kube-apiserver", "apiserver", 1, 6);
    state.pod(WatchUpdate::Listed(vec![pod]), 110);
    assert!(state.is_due(700) && !state.is_due(701));

    let mut without = config();
    without.services.remove("etcd");
    state.configure(Arc::new(without));
    assert_eq!((state.is_ready("etcd"), state.weeders.keys()), (None, vec![]));
    assert_eq!(state.crashing_pods(), 1, "kube-apiserver has it, too");
    let mut none = config();
    none.services.clear();
    state.configure(Arc::new(none));
    assert_eq!(state.crashing_pods(), 0);
}

#[test]
fn the_end_of_a_weeder_is_reported_when_its_service_is_no_longer_configured() {
    let mut state = recovered();
    let log = CapturedOutput::default();
    let writer = log.clone();
    let (subscriber, _) = telemetry::subscriber(LogFormat::Json, "info", move || writer.clone()).unwrap();
    let mut without = config();
    without.services.remove("etcd");
    tracing::subscriber::with_default(subscriber, || state.configure(Arc::new(without)));
    let log = log.text();
    assert!(
        log.contains("weeder ended") && log.contains("\"how\":\"cancelled\""),
        "{log}"
    );
}

#[test]
fn a_deletion_that_is_under_way_when_the_configuration_changes_is_shown() {
    let mut state = recovered();
    let deletion = state.take("shoot", at(100)).unwrap();
    let longer = WeederConfig {
        watch_duration: Duration::from_secs(600),
        ..config()
    };
    state.configure(Arc::new(longer));
    state.answered(&deletion, &DeletionResult::Deleted, at(101));
    assert_eq!(state.weeder().deleted, 1);
}

#[test]
fn ready_for_and_a_fourth_recovery_in_a_minute_wait() {
    let mut state = waiting_for_etcd();
    let ready_for = WeederConfig {
        ready_for: Duration::from_secs(5),
        ..config()
    };
    state.config = Arc::new(ready_for);
    for (i, second) in [100, 110, 120, 130].into_iter().enumerate() {
        state.slice(slice("etcd", false, second - 5, 50), second - 5);
        state.slice(slice("etcd", true, second, 50), second);
        state.tick(at(second + 4));
        assert_eq!(state.weeder().phase, Phase::Queued);
        state.tick(at(second + 5));
        let wanted = if i < 3 { Phase::Active } else { Phase::Queued };
        assert_eq!(state.weeder().phase, wanted, "recovery {i}");
    }
    let reasons: Vec<_> = state.take_notices().iter().map(|notice| notice.reason).collect();
    assert_eq!(reasons, ["ServiceFlapping"]);
    assert_eq!(state.weeder().recovery.deletes_from, at(165));
    assert!(!state.is_due(164) && state.is_due(165));
    assert_eq!(state.delete_all(165), ["kube-apiserver"]);
}

#[test]
fn answers_decide_when_a_pod_is_tried_again() {
    let throttled = DeletionResult::Throttled(Some(Duration::from_secs(7)));
    for (failure, again) in [
        (DeletionResult::Failed("cut".to_owned()), Some(101)),
        (DeletionResult::Forbidden("no".to_owned()), Some(101)),
        (DeletionResult::Changed, Some(101)),
        (throttled, Some(107)),
        (DeletionResult::Gone, None),
    ] {
        let mut state = recovered();
        let deletion = state.take("shoot", at(100)).unwrap();
        assert!(state.due("shoot", at(100)).is_none(), "it is under way");
        // A refusal for being asked too often is one for all.
        state.crash(crashing("another", "apiserver", 1, 8), 100);
        state.answered(&deletion, &failure, at(100));
        assert_eq!(state.weeder().deletions[0].result, failure);
        let is_throttled = matches!(failure, DeletionResult::Throttled(_));
        let names = if is_throttled { &[][..] } else { &["another"] };
        assert_eq!(state.delete_all(100), *names, "{failure}");
        let first_due = (100..200).find(|second| {
            let due = state.due("shoot", at(*second));
            due.is_some()
        });
        assert_eq!(first_due, again, "{failure}");
    }
}

#[test]
fn pods_that_are_gone_are_forgotten_by_the_watch_that_sees_them() {
    let mut state = recovered();
    let key = crashing("kube-apiserver", "apiserver", 1, 6).key;
    let file = b"servicesAndDependantSelectors: {etcd: {podSelectors: [{matchLabels: {role: other}}]}}";
    let parsed = watchdog_api::weeder::parse(file, UnknownFields::Refused);
    let other = parsed.unwrap().config.services["etcd"][0].clone();
    state.pods_updated(&other, WatchUpdate::Removed(key.clone()), at(101));
    state.pods_updated(&other, WatchUpdate::Listed(Vec::new()), at(101));
    assert_eq!(state.crashing_pods(), 1, "it is gone from another watch");
    let pod = crashing("kube-apiserver", "apiserver", 1, 6);
    state.pod(WatchUpdate::Listed(vec![pod.clone()]), 102);
    assert_eq!(state.crashing_pods(), 1);
    state.pod(WatchUpdate::Listed(Vec::new()), 103);
    assert_eq!(state.crashing_pods(), 0);
    state.crash(pod, 104);
    state.pod(WatchUpdate::Removed(key), 105);
    assert_eq!(state.crashing_pods(), 0);
}

#[test]
fn after_etcd_was_restored_a_successor_with_a_low_revision_is_left_alone() {
    let mut state = recovered();
    assert_eq!(state.delete_all(100), ["kube-apiserver"]);
    state.slices_updated(None, WatchUpdate::Restored, at(110));
    state.crash(crashing("successor", "apiserver", 112, 6), 130);
    assert_eq!(state.delete_all(130), [""; 0]);
    state.crash(crashing("late", "apiserver", 1, 7), 131);
    assert_eq!(state.delete_all(131), ["late"]);
}

/// The deletion of the pod is undone.
#[test]
fn after_etcd_was_restored_a_pod_is_deleted_again() {
    let mut state = recovered();
    assert_eq!(state.delete_all(100), ["kube-apiserver"]);
    state.pod(WatchUpdate::Restored, 110);
    let pod = crashing("kube-apiserver", "apiserver", 1, 6);
    state.pod(WatchUpdate::Listed(vec![pod]), 111);
    assert_eq!(state.delete_all(111), ["kube-apiserver"]);
}

#[test]
fn slices_move_are_renamed_and_vanish() {
    let named = |name: &str, service: &str| Slice {
        key: NamespacedName::new("shoot", name),
        ..slice(service, true, 1, 5)
    };
    let mut state = new(config());
    state.slice(named("a", "etcd"), 1);
    state.slice(named("a", "kube-apiserver"), 2);
    assert_eq!(
        (state.is_ready("etcd"), state.is_ready("kube-apiserver")),
        (None, Some(true))
    );
    // The slice of a service gets another name: that is no recovery.
    state.slice(named("b", "kube-apiserver"), 3);
    state.list(vec![named("b", "kube-apiserver")], 4);
    let key = NamespacedName::new("shoot", "kube-apiserver");
    assert_eq!(state.services.get(&key).unwrap().since, at(2));
    assert_eq!(state.weeders.get(&key).unwrap().recovery.at, at(2));
    // Deletion is no event, and neither is a list of another service.
    state.slices_updated(Some("etcd"), WatchUpdate::Listed(Vec::new()), at(5));
    assert_eq!(state.is_ready("kube-apiserver"), Some(true));
    let gone = WatchUpdate::Removed(NamespacedName::new("shoot", "b"));
    state.slices_updated(None, gone, at(6));
    assert_eq!(state.is_ready("kube-apiserver"), None);
    assert_eq!(state.weeders.get(&key).unwrap().phase, Phase::Cancelled);
}

#[test]
fn a_pod_that_is_left_alone_is_reported_once_however_many_there_are() {
    let mut state = recovered();
    assert_eq!(state.delete_all(100), ["kube-apiserver"]);
    for i in 0..100 {
        state.crash(crashing(&format!("young-{i}"), "apiserver", 101, 60), 120);
    }
    let revision = |state: &WeederState| state.weeders.position().revision;
    let before = revision(&state);
    state.review("shoot", at(120));
    let after = revision(&state);
    assert!(before < after);
    state.review("shoot", at(121));
    assert_eq!(revision(&state), after);
}

/// Between two crashes a container runs for a moment, and its pod is in no crash loop.
#[test]
fn a_pod_that_crashes_again_is_recorded_once_for_each_recovery() {
    let mut state = recovered();
    let deletion = state.take("shoot", at(100)).unwrap();
    state.answered(&deletion, &DeletionResult::KeptBack, at(100));
    for second in [110, 120, 399] {
        for (name, created) in [("kube-apiserver", 1), ("young", 101)] {
            let pod = crashing(name, "apiserver", created, 60);
            state.pod(WatchUpdate::Removed(pod.key.clone()), second);
            state.crash(pod, second);
        }
        assert!(!state.is_due(second), "it is kept back");
        state.review("shoot", at(second));
    }
    let weeder = state.weeder();
    let left_alone: Vec<&str> = weeder.left_alone.iter().map(|left| &*left.pod.key.name).collect();
    assert_eq!((weeder.deleted, left_alone), (1, vec!["young"]));

    state.slice(slice("etcd", false, 400, 90), 400);
    state.slice(slice("etcd", true, 401, 91), 401);
    assert_eq!(state.delete_all(401), ["kube-apiserver", "young"]);
    state.tick(at(2_000));
    assert_eq!(
        state.kept_back,
        KeptBackPods::default(),
        "nothing is remembered for no recovery"
    );
}

proptest! {
    /// However many pods crash in a namespace, it has one turn for each turn of every other.
    #[test]
    fn namespaces_have_their_turns_in_a_circle(crashing_pods in prop::collection::vec(1_usize..30, 1..12)) {
        let mut state = new(config());
        let mut left = BTreeMap::new();
        for (i, count) in crashing_pods.into_iter().enumerate() {
            let name = format!("shoot--{i}");
            state.slice(in_shoot!(name.clone(), slice("etcd", false, 1, 5)), 10);
            for pod in 0..count {
                state.crash(in_shoot!(name.clone(), crashing(&format!("pod-{pod}"), "apiserver", 1, 6)), 10);
            }
            state.slice(in_shoot!(name.clone(), slice("etcd", true, 100, 50)), 100);
            left.insert(name, count);
        }
        let queue = state.queue.clone();
        let mut last_turns = BTreeMap::new();
        for turn in 0.. {
            let Some(WorkItem::One(namespace)) = queue.next().now_or_never() else { break };
            let Some(deletion) = state.take(&namespace, at(100)) else { continue };
            state.answered(&deletion, &DeletionResult::Deleted, at(100));
            let before = last_turns.insert(namespace.to_string(), turn);
            *left.get_mut(&*namespace).unwrap() -= 1;
            let waiting = left.iter().filter(|(_, count)| **count > 0);
            prop_assert!(waiting.into_iter().all(|(name, _)| last_turns.get(name) >= before.as_ref()));
        }
        prop_assert!(left.values().all(|count| *count == 0));
    }

    /// A service recovers when, by all of its slices, it becomes ready; in whatever order they come and go.
    #[test]
    fn every_recovery_is_that_of_the_rule(
        steps in prop::collection::vec(
            (0_usize..4, prop::option::weighted(0.8, (0_usize..2, 0_u32..2))),
            0..40,
        ),
    ) {
        let (mut state, mut slices) = (new(config()), BTreeMap::new());
        for (second, (name, applied)) in (1_000..).step_by(100).zip(steps) {
            let ready = |slices: &BTreeMap<_, Slice>, service: &str| {
                let mut of = slices.values().filter(|slice| slice.service.as_deref() == Some(service));
                of.any(|slice| slice.endpoints.ready > 0)
            };
            let before = slices.clone();
            let key = NamespacedName::new("shoot", format!("slice-{name}"));
            match applied {
                Some((service, ready)) => {
                    let service = ["etcd", "kube-apiserver"][service];
                    let endpoints = Endpoints { ready, total: 1 };
                    let slice = Slice { key: key.clone(), endpoints, ..slice(service, true, second, 1) };
                    slices.insert(key, slice.clone());
                    state.slice(slice, second);
                }
                None => {
                    slices.remove(&key);
                    state.slices_updated(None, WatchUpdate::Removed(key), at(second));
                }
            }
            for service in ["etcd", "kube-apiserver"] {
                let is = ready(&slices, service);
                prop_assert_eq!(state.is_ready(service).unwrap_or(false), is);
                let weeder = state.weeders.get(&NamespacedName::new("shoot", service));
                let has_recovered = weeder.is_some_and(|weeder| weeder.recovery.at == at(second));
                prop_assert_eq!(has_recovered, is && !ready(&before, service));
            }
        }
    }
}
