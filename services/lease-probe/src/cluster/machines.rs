//! The machines of a shoot, listed on the seed when they matter.
//!
//! They are not kept in an index: machine-controller-manager writes a Machine's status with every change of its
//! node's conditions, so a watch over a large seed would cost more, all the time, than the few lists that a suspicion
//! or an incident needs.

use watchdog_api::list::{Item, ItemList};
use watchdog_api::machine::MachineItem;
use watchdog_api::names;
use watchdog_kube::client::request;

use crate::domain::outcome::Failure;

/// Lists the machines in the shoot's namespace.
///
/// # Errors
/// Says why they could not be listed. A single malformed machine fails the list: its node would look as if it had
/// none.
pub async fn list(seed: &kube::Client, namespace: &str) -> Result<Vec<MachineItem>, Failure> {
    let path = format!(
        "/apis/{}/{}/namespaces/{namespace}/machines",
        names::MACHINE_GROUP,
        names::V1ALPHA1
    );
    let get = http::Request::get(path)
        .body(Vec::new())
        .map_err(|e| Failure::Machines(e.to_string()))?;
    let text = request(seed.request_text(get))
        .await
        .map_err(|e| Failure::Machines(e.to_string()))?;
    let list = ItemList::<MachineItem>::from_slice(text.as_bytes());
    let list = list.map_err(|e| Failure::Machines(e.to_string()))?;
    let machine = |item| match item {
        Item::Ok(machine) => Ok(machine),
        Item::Malformed { name, reason } => Err(Failure::Machines(format!(
            "machine {} is malformed: {reason}",
            name.unwrap_or_default()
        ))),
    };
    list.items.into_iter().map(machine).collect()
}
