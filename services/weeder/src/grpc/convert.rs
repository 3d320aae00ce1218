//! Domain -> proto.

use std::sync::Arc;

use prost_types::Timestamp;
use watchdog_feed::message::{Event, Message};
use watchdog_feed::wire::{self, duration};
use watchdog_proto::feed::v1 as feed;
use watchdog_proto::weeder::v1 as pb;

use crate::domain::moment::Moment;
use crate::domain::readiness::{Readiness, ServiceState};
use crate::domain::service::ServiceKey;
use crate::domain::weeder::{DeletionResult, PodDeletion, State, Weeder};

/// One message of the stream of `WatchEndpointReadiness`.
#[must_use]
pub fn readiness_response(
    message: Message<ServiceKey, Arc<ServiceState>>,
    observer: &str,
) -> pb::WatchEndpointReadinessResponse {
    use pb::watch_endpoint_readiness_response::Event as PbEvent;
    let event = match message.event {
        Event::Upsert(service, state) => PbEvent::Upsert(readiness(&service, &state, observer)),
        Event::Removed(service) => PbEvent::Removed(key(&service)),
        Event::SnapshotComplete(items) => PbEvent::SnapshotComplete(feed::SnapshotComplete { items }),
        Event::Heartbeat => PbEvent::Heartbeat(feed::Heartbeat {}),
    };
    pb::WatchEndpointReadinessResponse {
        position: Some(wire::position(&message.position)),
        event: Some(event),
    }
}

/// One message of the stream of `WatchWeeding`, sent at `now`.
#[must_use]
pub fn weeding_response(
    message: Message<ServiceKey, Arc<Weeder>>,
    owner: &str,
    now: Moment,
) -> pb::WatchWeedingResponse {
    use pb::watch_weeding_response::Event as PbEvent;
    let event = match message.event {
        Event::Upsert(_, weeder) => PbEvent::Upsert(weeding(&weeder, owner, now)),
        Event::Removed(service) => PbEvent::Removed(key(&service)),
        Event::SnapshotComplete(items) => PbEvent::SnapshotComplete(feed::SnapshotComplete { items }),
        Event::Heartbeat => PbEvent::Heartbeat(feed::Heartbeat {}),
    };
    pb::WatchWeedingResponse {
        position: Some(wire::position(&message.position)),
        event: Some(event),
    }
}

/// A weeder as it is told at `now`.
#[must_use]
pub fn weeding(weeder: &Weeder, owner: &str, now: Moment) -> pb::Weeding {
    let state = match weeder.state {
        State::Queued => pb::WeederState::Queued,
        State::Active => pb::WeederState::Active,
        State::Ended => pb::WeederState::Ended,
        State::Cancelled => pb::WeederState::Cancelled,
    };
    pb::Weeding {
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
    }
}

fn readiness(service: &ServiceKey, state: &ServiceState, observer: &str) -> pb::EndpointReadiness {
    let readiness = match state.readiness() {
        Readiness::Ready => pb::Readiness::Ready,
        Readiness::NotReady => pb::Readiness::NotReady,
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
    }
}

fn key(service: &ServiceKey) -> pb::ServiceKey {
    pb::ServiceKey {
        namespace: service.namespace.to_string(),
        service: service.service.to_string(),
    }
}

const fn timestamp(moment: Moment) -> Timestamp {
    wire::timestamp(moment.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::failure::Failure;
    use crate::domain::fixtures::{at, crashing, dependants};

    #[test]
    fn a_weeder_is_told_whole() {
        let service = ServiceKey::new("shoot", "kube-apiserver");
        let life = Duration::from_secs(300);
        let mut weeder = Weeder::new(service, dependants("kube-apiserver"), life, at(100.5));
        weeder.activate();
        let pod = crashing("kcm", "kcm", "u", "7");
        let crash = pod.crash.clone().unwrap();
        weeder.record(&pod, &crash, &Err(Failure::Forbidden("no".to_owned())), at(101.0));
        weeder.record(&pod, &crash, &Ok(()), at(102.0));
        let told = weeding(&weeder, "weeder-0", at(110.25));
        assert_eq!(told.state(), pb::WeederState::Active);
        assert_eq!(told.key.unwrap().service, "kube-apiserver");
        assert_eq!(
            told.started_at.unwrap(),
            Timestamp {
                seconds: 100,
                nanos: 500_000_000
            }
        );
        assert_eq!(
            told.ends_at.unwrap(),
            Timestamp {
                seconds: 400,
                nanos: 500_000_000
            }
        );
        assert_eq!(
            told.remaining.unwrap(),
            prost_types::Duration {
                seconds: 290,
                nanos: 250_000_000
            }
        );
        assert_eq!(told.selectors, ["role in (apiserver,kcm)"]);
        assert_eq!((told.deleted, told.deletions.len()), (1, 2));
        assert_eq!(told.deletions[0].result(), pb::DeletionResult::Refused);
        assert_eq!(told.deletions[1].result(), pb::DeletionResult::Deleted);
        assert_eq!(
            (told.deletions[1].sequence, told.deletions[1].restart_count),
            (2, 5)
        );
        weeder.end();
        let ended = weeding(&weeder, "weeder-0", at(110.25));
        assert_eq!(ended.remaining.unwrap(), prost_types::Duration::default());
        assert_eq!(ended.message, "It has lived out its time and deleted 1 pod.");
    }
}
