//! The machines of a shoot, listed on the seed when they matter.
//!
//! They are not kept in an index: machine-controller-manager writes a Machine's status with every change of its
//! node's conditions, so a watch over a large seed would cost more, all the time, than the few lists that a suspicion
//! or an incident needs.

use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind, Status};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use watchdog_api::list::ItemList;
use watchdog_api::machine::MachineItem;
use watchdog_api::names;
use watchdog_kube::client::{RequestError, request, request_within, retry_after};
use watchdog_kube::watch::OUTDATED_AFTER;
use watchdog_runtime::backoff::Backoff;
use watchdog_runtime::readiness::Readiness;

use super::pages::well_formed;
use crate::domain::outcome::ProbeFailure;

/// A list of the machines on the seed that takes longer has most likely lost its connection, and the next one answers
/// at once.
const DEADLINE: Duration = Duration::from_secs(10);

/// Name of the check in /readyz and in metrics.
const CHECK: &str = "machines";

/// The time between two checks of the Machines.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Lists one Machine from time to time, until `stop` is cancelled. The Machines of a shoot are listed only when a loss
/// is suspected. A seed on which they cannot be is found before that, because no loss is reported there. It blocks when
/// no list succeeds for [`OUTDATED_AFTER`].
///
/// # Errors
/// Never; the type is that of a critical task.
pub async fn check(seed: kube::Client, readiness: Readiness, stop: CancellationToken) -> anyhow::Result<()> {
    let mut blocker = None;
    let machine = GroupVersionKind::gvk(names::MACHINE_GROUP, names::V1ALPHA1, "Machine");
    let machines: Api<DynamicObject> = Api::all_with(seed, &ApiResource::from_gvk(&machine));
    let one = ListParams::default().limit(1);
    let mut failing_since = None;
    let mut pauses = Backoff::new(Duration::from_secs(1), CHECK_INTERVAL);
    let checking = async {
        loop {
            let Err(error) = request(machines.list_metadata(&one)).await else {
                (blocker, failing_since) = (None, None);
                pauses.reset();
                if readiness.recovered(CHECK) {
                    tracing::info!("the Machines of the seed can be listed again");
                }
                sleep(CHECK_INTERVAL).await;
                continue;
            };
            let since = *failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= OUTDATED_AFTER {
                blocker.replace(readiness.block(CHECK, format!("cannot be listed: {error}")));
            }
            let failure = error.failure();
            let reason = failure.reason.as_str();
            if readiness.failing(CHECK, failure) {
                tracing::warn!(reason, %error, "the Machines of the seed cannot be listed; trying again");
            }
            sleep(pauses.next_delay()).await;
        }
    };
    stop.run_until_cancelled(checking).await;
    Ok(())
}

/// How long a list of the machines may take after `failed` ones in a row, at most `longest`. Each gives the next more
/// time: a seed that is slow must be waited for in the end, or no loss is ever reported.
pub(super) fn deadline(failed: u32, longest: Duration) -> Duration {
    DEADLINE.saturating_mul(failed.saturating_add(1)).min(longest)
}

/// Lists the machines in the shoot's namespace within `deadline`.
///
/// # Errors
/// Says why they could not be listed. A single malformed machine fails the list: its node would look as if it had
/// none.
pub async fn list(
    seed: &kube::Client,
    namespace: &str,
    deadline: Duration,
) -> Result<Vec<MachineItem>, ProbeFailure> {
    let path = format!(
        "/apis/{}/{}/namespaces/{namespace}/machines",
        names::MACHINE_GROUP,
        names::V1ALPHA1
    );
    let get = http::Request::get(path)
        .body(Body::empty())
        .map_err(|e| ProbeFailure::Machines(e.to_string()))?;
    let answer = request_within(deadline, async {
        let (head, body) = seed.send(get).await?.into_parts();
        Ok((head, body.collect().await?.to_bytes()))
    });
    let (head, body) = answer.await.map_err(|e| ProbeFailure::Machines(e.to_string()))?;
    if !head.status.is_success() {
        return Err(refusal(&head, &body));
    }
    let list = ItemList::from_slice(&body).map_err(|e| ProbeFailure::Machines(e.to_string()))?;
    well_formed(list.items, "machine").map_err(ProbeFailure::Machines)
}

fn refusal(head: &http::response::Parts, body: &[u8]) -> ProbeFailure {
    let code = head.status.as_u16();
    let status = serde_json::from_slice::<Status>(body).unwrap_or_else(|_| {
        let text: String = String::from_utf8_lossy(body).trim().chars().take(200).collect();
        Status::failure(&text, "no Status").with_code(code)
    });
    match head.status {
        StatusCode::TOO_MANY_REQUESTS => {
            ProbeFailure::MachinesThrottled(retry_after(&head.headers, Some(&status)))
        }
        _ => ProbeFailure::Machines(RequestError::Refused(Box::new(status)).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that is dead is given up after 10 s. A seed that takes longer than that for an answer gets more
    /// time with each try, or no loss could ever be reported.
    #[test]
    fn a_list_of_machines_that_fails_may_take_longer_the_next_time() {
        let deadlines = |longest| {
            [0, 1, 2, u32::MAX].map(|failed| deadline(failed, Duration::from_secs(longest)).as_secs())
        };
        assert_eq!(deadlines(30), [10, 20, 30, 30]);
        assert_eq!(deadlines(5), [5; 4], "a short probeTimeout");
    }
}
