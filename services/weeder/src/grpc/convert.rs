//! Domain -> proto.

use prost_types::Timestamp;
use watchdog_proto::weeder::v1 as pb;
use watchdog_watch_stream::item::NamePair;
use watchdog_watch_stream::wire::{self, duration};

use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::ControllerRef;
use crate::domain::readiness::ServiceState;
use crate::domain::rule::KeepReason;
use crate::domain::weeder::{DeletionResult, LeftAlone, Phase, PodDeletion, Weeder};
use watchdog_api::unix_time::UnixTime;

/// A weeder as the API shows it at `now`.
pub(crate) fn weeder_message(weeder: &Weeder, owner: &str, now: UnixTime) -> pb::Weeder {
    let state = match weeder.phase {
        Phase::Queued => pb::WeederState::Queued,
        Phase::Active => pb::WeederState::Active,
        Phase::Ended => pb::WeederState::Ended,
        Phase::Cancelled => pb::WeederState::Cancelled,
    };
    pb::Weeder {
        key: Some(key(&weeder.key)),
        state: state.into(),
        started_at: Some(timestamp(weeder.recovery.at)),
        ends_at: Some(timestamp(weeder.recovery.ends_at)),
        selectors: weeder.dependants.queries().map(ToString::to_string).collect(),
        deleted: weeder.deleted,
        deletions: weeder.deletions.iter().map(|one| deletion(one, weeder)).collect(),
        message: weeder.message.clone(),
        owner: owner.to_owned(),
        remaining: Some(duration(weeder.remaining(now))),
        left_alone: weeder.left_alone.iter().map(left_alone).collect(),
        first_sight: weeder.recovery.first_sight,
        deletes_from: Some(timestamp(weeder.recovery.deletes_from)),
    }
}

pub(crate) fn readiness(
    service: &NamespacedName,
    state: &ServiceState,
    observer: &str,
) -> pb::EndpointReadiness {
    let readiness = if state.endpoints.is_ready() {
        pb::Readiness::Ready
    } else {
        pb::Readiness::NotReady
    };
    pb::EndpointReadiness {
        key: Some(key(service)),
        readiness: readiness.into(),
        ready_endpoints: state.endpoints.ready,
        endpoints: state.endpoints.total,
        since: Some(timestamp(state.since)),
        observer: observer.to_owned(),
    }
}

fn deletion(deletion: &PodDeletion, weeder: &Weeder) -> pb::PodDeletion {
    let result = match deletion.result {
        DeletionResult::Deleted => pb::DeletionResult::Deleted,
        DeletionResult::KeptBack => pb::DeletionResult::KeptBack,
        DeletionResult::Obsolete => pb::DeletionResult::Obsolete,
        DeletionResult::Refused => pb::DeletionResult::Refused,
    };
    pb::PodDeletion {
        sequence: deletion.sequence,
        pod: deletion.pod.to_string(),
        uid: deletion.uid.clone(),
        container: deletion.crash.container.clone(),
        init_container: deletion.crash.init,
        restart_count: deletion.crash.restarts,
        result: result.into(),
        message: deletion.message.clone(),
        at: Some(timestamp(deletion.at)),
        exit_code: deletion.crash.exit_code,
        exit_reason: deletion.crash.reason.clone(),
        service_ready_since: Some(timestamp(weeder.recovery.at)),
        useless: deletion.useless,
    }
}

fn left_alone(left: &LeftAlone) -> pb::LeftAlone {
    let controller = |owner: &ControllerRef| format!("{}/{}", owner.kind, owner.name);
    let reason = match left.reason {
        KeepReason::YoungerThanRecovery => pb::KeepReason::YoungerThanRecovery,
        KeepReason::NoController => pb::KeepReason::NoController,
        KeepReason::Job => pb::KeepReason::Job,
        KeepReason::ExcludedKind => pb::KeepReason::ExcludedKind,
        KeepReason::StaticPod => pb::KeepReason::StaticPod,
    };
    pb::LeftAlone {
        pod: left.pod.to_string(),
        container: left.crash.container.clone(),
        controller: left.owner.as_ref().map(controller).unwrap_or_default(),
        exit_code: left.crash.exit_code,
        exit_reason: left.crash.reason.clone(),
        exit_message: left.crash.message.clone(),
        at: Some(timestamp(left.at)),
        reason: reason.into(),
    }
}

/// The key of a service in the streams.
pub(crate) fn name_pair(service: &NamespacedName) -> NamePair {
    NamePair(service.namespace.clone(), service.name.clone())
}

fn key(service: &NamespacedName) -> pb::ServiceKey {
    pb::ServiceKey {
        namespace: service.namespace.to_string(),
        service: service.name.to_string(),
    }
}

const fn timestamp(moment: UnixTime) -> Timestamp {
    wire::timestamp(moment.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::failure::RequestFailure;
    use crate::domain::fixtures::{at, crashing, dependants, recovery};

    #[test]
    fn a_weeder_is_shown_completely() {
        let service = NamespacedName::new("shoot", "kube-apiserver");
        let mut weeder = Weeder::new(service, recovery(100, 50), dependants("kube-apiserver"));
        weeder.activate();
        let pod = crashing("kcm", "kcm", 50, 7);
        let crash = pod.crash_loop().unwrap().clone();
        let refused = RequestFailure::Forbidden("no".to_owned());
        weeder.record(&pod, &crash, Err(&refused), false, at(101));
        weeder.record(&pod, &crash, Ok(()), false, at(102));
        let mut successor = crashing("kcm-2", "kcm", 102, 9);
        successor.owner.clone_from(&pod.owner);
        assert!(weeder.judge_by(&successor));
        weeder.leave_alone(&successor, &crash, KeepReason::YoungerThanRecovery, at(103));
        let shown = weeder_message(&weeder, "weeder-0", at(110));
        assert_eq!(shown.state(), pb::WeederState::Active);
        assert_eq!(shown.key.unwrap().service, "kube-apiserver");
        let time = |seconds| Some(Timestamp { seconds, nanos: 0 });
        assert_eq!(shown.started_at, time(100));
        assert_eq!(shown.deletes_from, shown.started_at);
        assert_eq!(shown.ends_at, time(400));
        let remaining = prost_types::Duration {
            seconds: 290,
            nanos: 0,
        };
        assert_eq!(shown.remaining, Some(remaining));
        assert_eq!(shown.selectors, ["role in (apiserver,kcm)"]);
        assert!(!shown.first_sight);
        let [refused, deleted] = &shown.deletions[..] else {
            panic!("{:?}", shown.deletions)
        };
        assert_eq!(shown.deleted, 1);
        assert_eq!(refused.result(), pb::DeletionResult::Refused);
        assert_eq!(deleted.result(), pb::DeletionResult::Deleted);
        assert_eq!((deleted.sequence, deleted.restart_count), (2, 5));
        assert_eq!(
            (deleted.exit_code, deleted.exit_reason.as_str()),
            (Some(1), "Error")
        );
        assert_eq!(deleted.service_ready_since, time(100));
        assert!(deleted.useless && !refused.useless);
        let [left] = &shown.left_alone[..] else {
            panic!("{:?}", shown.left_alone)
        };
        assert_eq!(
            (left.pod.as_str(), left.controller.as_str()),
            ("kcm-2", "ReplicaSet/kcm-controller")
        );
        assert_eq!(left.reason(), pb::KeepReason::YoungerThanRecovery);
        assert_eq!(
            (left.exit_code, left.exit_message.as_str()),
            (Some(1), "no route to etcd")
        );
        weeder.end();
        let ended = weeder_message(&weeder, "weeder-0", at(110));
        assert_eq!(ended.remaining.unwrap(), prost_types::Duration::default());
        assert_eq!(ended.message, "Its time is over; it deleted 1 pod.");
    }
}
