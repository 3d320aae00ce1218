//! The machines of a shoot, listed on the seed when they matter.
//!
//! They are not kept in an index: machine-controller-manager writes a Machine's status with every change of its
//! node's conditions, so a watch over a large seed would cost more, all the time, than the few lists that a suspicion
//! or an incident needs.

use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use watchdog_api::list::{Item, ItemList};
use watchdog_api::machine::MachineItem;
use watchdog_api::names;
use watchdog_kube::client::{RequestError, request_within, retry_after};

use crate::domain::outcome::ProbeFailure;

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
    let list = ItemList::<MachineItem>::from_slice(&body);
    let list = list.map_err(|e| ProbeFailure::Machines(e.to_string()))?;
    let machine = |item| match item {
        Item::Ok(machine) => Ok(machine),
        Item::Malformed { name, reason } => Err(ProbeFailure::Machines(format!(
            "machine {} is malformed: {reason}",
            name.unwrap_or_default()
        ))),
    };
    list.items.into_iter().map(machine).collect()
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
