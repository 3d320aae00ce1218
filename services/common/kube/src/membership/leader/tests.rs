use std::task::Context;

use futures::task::{ArcWake, waker};
use http::{Request, Response};
use kube::client::Body;
use parking_lot::Mutex;

use super::*;

/// Notes at each change of the leader whether the process owns its keys then.
struct Owned {
    membership: Exclusive,
    at_changes: Mutex<Vec<bool>>,
}

impl ArcWake for Owned {
    fn wake_by_ref(this: &Arc<Self>) {
        this.at_changes.lock().push(this.membership.owns("key"));
    }
}

fn election() -> (Exclusive, LeaderElection) {
    let api = tower::service_fn(|_: Request<Body>| std::future::pending::<kube::Result<Response<Body>>>());
    let config = ElectionConfig {
        client: kube::Client::new(api, "garden"),
        namespace: "garden".to_owned(),
        lease: "lease",
        service: "weeder",
        identity: "me".into(),
        readiness: Readiness::default(),
        timing: ElectionTiming::default(),
    };
    LeaderElection::join(config, CancellationToken::new())
}

#[tokio::test(start_paused = true)]
async fn who_reads_that_this_process_leads_finds_that_it_owns_all_keys() {
    let (membership, mut election) = election();
    let owned = Arc::new(Owned {
        membership,
        at_changes: Mutex::default(),
    });
    let mut leader = election.leader();
    let waker = waker(Arc::clone(&owned));
    let now = election.now();
    election.candidate.on_read(now, None, Duration::ZERO);
    let lease = election.candidate.claim("lease", Timestamp::UNIX_EPOCH);
    let mut others = lease.clone();
    others.metadata.resource_version = Some("2".to_owned());
    others.spec.as_mut().unwrap().holder_identity = Some("other".to_owned());
    election.candidate.on_written(now, now, lease);
    for lost in [None, Some(others)] {
        if lost.is_some() {
            election.candidate.on_read(now, lost, Duration::ZERO);
        }
        leader.mark_unchanged();
        let mut changed = std::pin::pin!(leader.changed());
        let unchanged = changed.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(unchanged.is_pending());
        election.show(now);
    }
    assert_eq!(
        *owned.at_changes.lock(),
        [true, true],
        "it owns them before it reports that it leads, and until it has reported that it does not"
    );
    assert!(!owned.membership.owns("key"));
}
