//! Domain -> proto.

use prost_types::Timestamp;
use watchdog_proto::weeder::v1 as pb;
use watchdog_watch_stream::item::NamePair;
use watchdog_watch_stream::wire::{self, duration};

use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::ControllerRef;
use crate::domain::readiness::ServiceState;
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
        started_at: Some(timestamp(weeder.started_at)),
        ends_at: Some(timestamp(weeder.ends_at)),
        selectors: weeder.dependants.queries().map(ToString::to_string).collect(),
        deleted: weeder.deleted,
        deletions: weeder.deletions.iter().map(deletion).collect(),
        message: weeder.message.clone(),
        owner: owner.to_owned(),
        remaining: Some(duration(weeder.remaining(now))),
        left_alone: weeder.left_alone.iter().map(left_alone).collect(),
        first_sight: weeder.first_sight,
        deletes_from: Some(timestamp(weeder.deletes_from)),
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

fn deletion(deletion: &PodDeletion) -> pb::PodDeletion {
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
        service_ready_since: Some(timestamp(deletion.service_ready_since)),
        useless: deletion.useless,
    }
}

fn left_alone(left: &LeftAlone) -> pb::LeftAlone {
    let controller = |owner: &ControllerRef| format!("{}/{}", owner.kind, owner.name);
    pb::LeftAlone {
        pod: left.pod.to_string(),
        container: left.crash.container.clone(),
        controller: left.owner.as_ref().map(controller).unwrap_or_default(),
        exit_code: left.crash.exit_code,
        exit_reason: left.crash.reason.clone(),
        exit_message: left.crash.message.clone(),
        at: Some(timestamp(left.at)),
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
    use std::time::Duration;

    use super::*;
    use crate::domain::failure::RequestFailure;
    use crate::domain::fixtures::{at, crashing, dependants};

    #[test]
    fn a_weeder_is_shown_completely() {
        let service = NamespacedName::new("shoot", "kube-apiserver");
        let life = Duration::from_secs(300);
        let mut weeder = Weeder::new(
            service,
            dependants("kube-apiserver"),
            false,
            Duration::ZERO,
            life,
            at(100.5),
        );
        let pod = crashing("kcm", "kcm", "u", "7");
        let crash = pod.crash_loop().unwrap().clone();
        let refused = RequestFailure::Forbidden("no".to_owned());
        weeder.record(&pod, &crash, at(100.5), Err(&refused), false, at(101.0));
        weeder.record(&pod, &crash, at(100.5), Ok(()), false, at(102.0));
        assert!(weeder.mark_useless(&pod, "main") && !weeder.mark_useless(&pod, "main"));
        weeder.leave_alone(&pod, &crash, at(103.0));
        let shown = weeder_message(&weeder, "weeder-0", at(110.25));
        assert_eq!(shown.state(), pb::WeederState::Active);
        assert_eq!(shown.key.unwrap().service, "kube-apiserver");
        let time = |seconds, nanos| Some(Timestamp { seconds, nanos });
        assert_eq!(shown.started_at, time(100, 500_000_000));
        assert_eq!(shown.deletes_from, shown.started_at);
        assert_eq!(shown.ends_at, time(400, 500_000_000));
        let remaining = prost_types::Duration {
            seconds: 290,
            nanos: 250_000_000,
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
        assert_eq!(deleted.service_ready_since, time(100, 500_000_000));
        assert!(deleted.useless && !refused.useless);
        let [left] = &shown.left_alone[..] else {
            panic!("{:?}", shown.left_alone)
        };
        assert_eq!(
            (left.pod.as_str(), left.controller.as_str()),
            ("kcm", "ReplicaSet/kcm-controller")
        );
        assert_eq!(
            (left.exit_code, left.exit_message.as_str()),
            (Some(1), "no route to etcd")
        );
        weeder.end();
        let ended = weeder_message(&weeder, "weeder-0", at(110.25));
        assert_eq!(ended.remaining.unwrap(), prost_types::Duration::default());
        assert_eq!(ended.message, "Its time is over; it deleted 1 pod.");
    }
}
