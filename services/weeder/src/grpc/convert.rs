//! Domain -> proto.

use std::time::Duration;

use prost_types::Timestamp;
use watchdog_api::unix_time::UnixTime;
use watchdog_api::weeder::WeederConfig;
use watchdog_proto::weeder::v1 as pb;
use watchdog_watch_stream::item::NamePair;
use watchdog_watch_stream::wire::{self, duration};

use crate::domain::deletion_result::DeletionResult;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::ControllerRef;
use crate::domain::readiness::ServiceState;
use crate::domain::rule::KeepReason;
use crate::domain::weeder::{LeftAlone, Phase, PodDeletion, Weeder};

/// A weeder as the API shows it at `now`.
pub(crate) fn weeder_message(
    service: &NamespacedName,
    weeder: &Weeder,
    config: &WeederConfig,
    replica: &str,
    now: UnixTime,
) -> pb::Weeder {
    let state = match weeder.phase {
        Phase::Queued => pb::WeederState::Queued,
        Phase::Active => pb::WeederState::Active,
        Phase::Ended => pb::WeederState::Ended,
        Phase::Cancelled => pb::WeederState::Cancelled,
    };
    let selectors = config.services.get(&*service.name).into_iter().flatten();
    let recovery = &weeder.recovery;
    let remaining = match weeder.is_live() {
        true => recovery.ends_at.since(now),
        false => Duration::ZERO,
    };
    pb::Weeder {
        key: Some(name_pair(service).into()),
        state: state.into(),
        start_time: Some(timestamp(recovery.at)),
        end_time: Some(timestamp(recovery.ends_at)),
        selectors: selectors.map(ToString::to_string).collect(),
        deleted: weeder.deleted,
        deletions: weeder.deletions.iter().map(|one| deletion(one, weeder)).collect(),
        message: weeder.message(&service.name),
        replica: replica.to_owned(),
        remaining: Some(duration(remaining)),
        left_alone: weeder.left_alone.iter().map(left_alone).collect(),
        found_ready: recovery.found_ready,
        delete_start_time: Some(timestamp(recovery.deletes_from)),
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
        key: Some(name_pair(service).into()),
        readiness: readiness.into(),
        ready_endpoints: state.endpoints.ready,
        endpoints: state.endpoints.total,
        readiness_change_time: Some(timestamp(state.since)),
        observer: observer.to_owned(),
    }
}

fn deletion(deletion: &PodDeletion, weeder: &Weeder) -> pb::PodDeletion {
    let pod = &deletion.pod;
    let crash = pod.crash.clone();
    let result = match deletion.result {
        DeletionResult::Deleted => pb::DeletionResult::Deleted,
        DeletionResult::KeptBack => pb::DeletionResult::KeptBack,
        DeletionResult::Gone | DeletionResult::Changed => pb::DeletionResult::Obsolete,
        DeletionResult::Forbidden(_) | DeletionResult::Throttled(_) | DeletionResult::Failed(_) => {
            pb::DeletionResult::Refused
        }
    };
    pb::PodDeletion {
        sequence: deletion.sequence,
        pod: pod.key.name.to_string(),
        uid: pod.uid.clone(),
        container: crash.container,
        init_container: crash.init,
        restart_count: crash.restarts,
        result: result.into(),
        message: weeder.result_message(deletion),
        delete_time: Some(timestamp(deletion.at)),
        exit_code: crash.exit_code,
        exit_reason: crash.reason,
        service_ready_time: Some(timestamp(weeder.recovery.at)),
        useless: deletion.useless_by.is_some(),
    }
}

fn left_alone(left: &LeftAlone) -> pb::LeftAlone {
    let controller = |owner: &ControllerRef| format!("{}/{}", owner.kind, owner.name);
    let crash = left.pod.crash.clone();
    let reason = match left.reason {
        KeepReason::YoungerThanRecovery => pb::KeepReason::YoungerThanRecovery,
        KeepReason::NoController => pb::KeepReason::NoController,
        KeepReason::Job => pb::KeepReason::Job,
        KeepReason::ExcludedKind => pb::KeepReason::ExcludedKind,
        KeepReason::StaticPod => pb::KeepReason::StaticPod,
    };
    pb::LeftAlone {
        pod: left.pod.key.name.to_string(),
        container: crash.container,
        controller: left.pod.owner.as_ref().map(controller).unwrap_or_default(),
        exit_code: crash.exit_code,
        exit_reason: crash.reason,
        exit_message: crash.message,
        decide_time: Some(timestamp(left.at)),
        reason: reason.into(),
    }
}

/// The key of a service in the streams.
pub(crate) fn name_pair(service: &NamespacedName) -> NamePair {
    NamePair(service.namespace.clone(), service.name.clone())
}

const fn timestamp(moment: UnixTime) -> Timestamp {
    wire::timestamp(moment.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    use crate::domain::fixtures::{at, config, crashing, recovery};

    #[test]
    fn a_weeder_is_shown_completely() {
        let service = NamespacedName::new("shoot", "kube-apiserver");
        let mut weeder = Weeder::new(recovery(100, 50), Vec::new());
        let shown = |weeder: &Weeder| weeder_message(&service, weeder, &config(), "weeder-0", at(110));
        weeder.phase = weeder.next_phase(at(100)).unwrap();
        let pod = Arc::new(crashing("kcm", "kcm", 50, 7));
        let refused = DeletionResult::Forbidden("no".to_owned());
        weeder.record(&pod, refused, at(101));
        weeder.record(&pod, DeletionResult::Deleted, at(102));
        let mut successor = crashing("kcm-2", "kcm", 102, 9);
        successor.owner.clone_from(&pod.owner);
        assert!(weeder.judge_by(&successor));
        weeder.leave_alone(&Arc::new(successor), KeepReason::YoungerThanRecovery, at(103));
        let active = shown(&weeder);
        assert_eq!(active.state(), pb::WeederState::Active);
        assert_eq!(active.key.unwrap().service, "kube-apiserver");
        let time = |seconds| Some(Timestamp { seconds, nanos: 0 });
        assert_eq!((active.start_time, active.end_time), (time(100), time(400)));
        assert_eq!(active.delete_start_time, time(100));
        assert_eq!(active.remaining.unwrap().seconds, 290);
        assert_eq!(active.selectors, ["role in (apiserver,kcm)"]);
        assert!(!active.found_ready);
        let [refused, deleted] = &active.deletions[..] else {
            panic!("{:?}", active.deletions)
        };
        assert_eq!(active.deleted, 1);
        assert_eq!(refused.result(), pb::DeletionResult::Refused);
        assert_eq!(deleted.result(), pb::DeletionResult::Deleted);
        assert_eq!((deleted.sequence, deleted.restart_count), (2, 5));
        assert_eq!((deleted.exit_code, &*deleted.exit_reason), (Some(1), "Error"));
        assert_eq!(deleted.service_ready_time, time(100));
        assert!(deleted.useless && !refused.useless);
        let [left] = &active.left_alone[..] else {
            panic!("{:?}", active.left_alone)
        };
        assert_eq!(
            (&*left.pod, &*left.controller),
            ("kcm-2", "ReplicaSet/kcm-controller")
        );
        assert_eq!(left.reason(), pb::KeepReason::YoungerThanRecovery);
        assert_eq!(
            (left.exit_code, &*left.exit_message),
            (Some(1), "no route to etcd")
        );
        weeder.phase = weeder.next_phase(at(401)).unwrap();
        let ended = shown(&weeder);
        assert_eq!(ended.remaining.unwrap(), prost_types::Duration::default());
        assert_eq!(ended.message, "watchDuration elapsed; the weeder deleted 1 pod.");
    }
}
