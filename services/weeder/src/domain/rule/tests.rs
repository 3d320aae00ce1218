use super::*;
use crate::domain::fixtures::{at, config, crashing, owner, recovery};

fn of(pod: &Pod, recovery: &Recovery, now: i64) -> PodDecision {
    decide(pod, "kube-apiserver", recovery, &config(), at(now))
}

const YOUNGER: PodDecision = PodDecision::Keep(KeepReason::YoungerThanRecovery);

#[test]
fn what_was_there_before_the_recovery_is_deleted_and_a_successor_never() {
    let recovery = recovery(100, 50);
    let at_100 = |created, version| of(&crashing("pod", "kcm", created, version), &recovery, 100);
    assert_eq!(at_100(99, 60), PodDecision::Delete);
    assert_eq!(at_100(101, 60), YOUNGER);
    // Times are whole seconds, so it is left alone.
    assert_eq!(at_100(100, 51), YOUNGER);
    // Revisions are exact, whatever the times say.
    assert_eq!(at_100(100, 49), PodDecision::Delete);
    assert_eq!(at_100(101, 49), PodDecision::Delete);
    let mut unreadable = crashing("c", "kcm", 100, 49);
    unreadable.resource_version = "opaque".to_owned();
    assert_eq!(of(&unreadable, &recovery, 100), YOUNGER);
    let mut undated = crashing("d", "kcm", 1, 60);
    undated.created = None;
    assert_eq!(of(&undated, &recovery, 100), YOUNGER);
    let unwritten = Recovery {
        write: None,
        ..recovery
    };
    assert_eq!(of(&crashing("old", "kcm", 1, 1), &unwritten, 100), YOUNGER);
}

#[test]
fn only_dependants_are_concerned_and_only_for_a_while() {
    let mut recovery = recovery(100, 50);
    let pod = crashing("old", "kcm", 1, 1);
    let other = crashing("old", "other", 1, 1);
    assert_eq!(of(&other, &recovery, 100), PodDecision::NotConcerned);
    assert_eq!(of(&pod, &recovery, 400), PodDecision::Delete);
    assert_eq!(
        of(&pod, &recovery, 401),
        PodDecision::NotConcerned,
        "watchDuration is over"
    );
    recovery.deletes_from = at(105);
    assert_eq!(of(&pod, &recovery, 104), PodDecision::NotConcerned, "readyFor");
    assert_eq!(of(&pod, &recovery, 105), PodDecision::Delete);
}

#[test]
fn what_is_not_replaced_is_deleted_only_when_the_configuration_says_so() {
    let mut file = config();
    let of = |file: &WeederConfig, kind: Option<&str>| {
        let mut pod = crashing("old", "kcm", 1, 1);
        pod.owner = kind.map(|kind| owner(kind, "1"));
        decide(&pod, "kube-apiserver", &recovery(100, 50), file, at(100))
    };
    assert_eq!(of(&file, Some("ReplicaSet")), PodDecision::Delete);
    assert_eq!(of(&file, Some("StatefulSet")), PodDecision::Delete);
    assert_eq!(of(&file, Some("Job")), PodDecision::Keep(KeepReason::Job));
    assert_eq!(of(&file, Some("Node")), PodDecision::Keep(KeepReason::StaticPod));
    assert_eq!(of(&file, None), PodDecision::Keep(KeepReason::NoController));
    file.exclude_kinds.insert("StatefulSet".to_owned());
    file.delete_pods_of_jobs = true;
    file.delete_pods_without_controller = true;
    assert_eq!(
        of(&file, Some("StatefulSet")),
        PodDecision::Keep(KeepReason::ExcludedKind)
    );
    assert_eq!(of(&file, Some("Job")), PodDecision::Delete);
    assert_eq!(of(&file, None), PodDecision::Delete);
    assert_eq!(of(&file, Some("Node")), PodDecision::Keep(KeepReason::StaticPod));
    file.exclude_kinds.insert("Job".to_owned());
    assert_eq!(
        of(&file, Some("Job")),
        PodDecision::Keep(KeepReason::ExcludedKind)
    );
}
