//! Lists of a shoot, read in pages that fit the memory for answers.

use http::StatusCode;
use serde::Deserialize;
use tokio::time::Instant;
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::{Item, ItemList, ListError};
use watchdog_api::names::IN_PLACE_UPDATE_CONDITION;
use watchdog_api::node::{NodeCondition, NodeItem};
use watchdog_api::protobuf;
use watchdog_kube::watch::LIST_PAGE;

use super::connection::{ApiResponse, CachedConnection};
use super::limits::{KeptLists, LARGEST_ANSWER};
use super::transport::{ApiRequest, Budget, Connector, JSON};
use crate::domain::outcome::{ProbeFailure, ShootPermission, quote};

/// The most objects that are asked for at once.
pub const LARGEST_PAGE: usize = LIST_PAGE as usize;

/// And the fewest, after pages that were too large: an object of an API server has at most 1.5 MB, and seldom more than
/// 256 kB.
const SMALLEST_PAGE: usize = 4;

/// Pages of one list at most.
const MAX_PAGES: usize = 200;

/// The longest token for a next page; that of an API server has some hundred bytes.
const LONGEST_TOKEN: usize = 4096;

/// How many objects are asked for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageSize(usize);

impl PageSize {
    /// The largest page of such objects.
    pub(super) const fn of<I: Listable>() -> Self {
        Self(I::LARGEST_PAGE)
    }

    /// Shrinks after a list that failed because a page was too large, or too large for the memory that was left.
    /// Returns false after any other failure, and if it is the smallest already.
    pub(super) fn shrink_after(&mut self, failure: &ProbeFailure) -> bool {
        let before = self.0;
        // Smaller pages do not make the whole list smaller.
        if let ProbeFailure::AnswerTooLarge(LARGEST_ANSWER) | ProbeFailure::NoAnswerMemory(_) = failure {
            self.0 = (before / 4).max(SMALLEST_PAGE);
        }
        self.0 < before
    }

    /// After a list whose largest page had this many bytes. Grows only if twice as much is far from the limit.
    fn grow<I: Listable>(&mut self, largest: usize) {
        if largest < LARGEST_ANSWER / 4 {
            self.0 = (2 * self.0).min(I::LARGEST_PAGE);
        }
    }
}

/// A complete list.
pub(super) struct Listed<I> {
    pub(super) items: Vec<Item<I>>,
    // When the first page was asked for, and when the last one was there.
    pub(super) sent: Instant,
    pub(super) received: Instant,
    // Of the whole list: an API server answers all pages from one state.
    pub(super) revision: u64,
}

/// An object that is listed.
pub(super) trait Listable: Sized {
    /// Where it is listed.
    const PATH: &'static str;
    /// The media types of a page.
    const ACCEPT: &'static str;
    /// The most of them that are asked for at once.
    const LARGEST_PAGE: usize;
    /// The most bytes of all pages of a list.
    const LARGEST_LIST: usize;
    /// The permission that the kubeconfig's user needs for that.
    const PERMISSION: ShootPermission;

    /// Decodes a page.
    fn page(bytes: &[u8]) -> Result<ItemList<Self>, ListError>;

    /// Drops what no rule reads. Returns the memory that the rest takes beside itself.
    fn trim(&mut self) -> usize;
}

impl Listable for LeaseItem {
    const PATH: &'static str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    // They are listed all the time.
    const ACCEPT: &'static str = protobuf::ACCEPT;
    const LARGEST_PAGE: usize = LARGEST_PAGE;
    const LARGEST_LIST: usize = 16 << 20;
    const PERMISSION: ShootPermission = ShootPermission::ListLeases;

    fn page(bytes: &[u8]) -> Result<ItemList<Self>, ListError> {
        Self::page::<LARGEST_PAGE>(bytes)
    }

    fn trim(&mut self) -> usize {
        self.name.len()
    }
}

impl Listable for NodeItem {
    const PATH: &'static str = "/api/v1/nodes";
    const ACCEPT: &'static str = JSON;
    // A page of nodes is then as large as one of leases: a page more of a large shoot costs a round trip.
    const LARGEST_PAGE: usize = 100;
    const LARGEST_LIST: usize = 128 << 20;
    const PERMISSION: ShootPermission = ShootPermission::ListNodes;

    fn page(bytes: &[u8]) -> Result<ItemList<Self>, ListError> {
        ItemList::at_most::<LARGEST_PAGE>(bytes)
    }

    fn trim(&mut self) -> usize {
        let is_read = |c: &NodeCondition| &*c.status == "True" || &*c.kind == IN_PLACE_UPDATE_CONDITION;
        self.conditions.retain(is_read);
        self.conditions.shrink_to_fit();
        let condition = |c: &NodeCondition| size_of_val(c) + c.kind.len() + c.status.len() + c.reason.len();
        let conditions: usize = self.conditions.iter().map(condition).sum();
        let texts = [&self.pool, &self.zone, &self.provider_id].into_iter().flatten();
        self.name.len() + texts.map(|text| text.len()).sum::<usize>() + conditions
    }
}

/// The items, if none is malformed: such a one might be one that counts. The error names it.
pub(super) fn well_formed<I>(items: Vec<Item<I>>, kind: &str) -> Result<Vec<I>, String> {
    let item = |item| match item {
        Item::Ok(item) => Ok(item),
        Item::Malformed { name, reason } => Err(format!(
            "{kind} {} is malformed: {reason}",
            name.unwrap_or_default()
        )),
    };
    items.into_iter().map(item).collect()
}

/// Lists once, page by page.
pub(super) async fn list<C: Connector, I: Listable>(
    connection: &mut CachedConnection<C>,
    size: &mut PageSize,
    kept: &mut KeptLists,
    budget: Budget,
) -> Result<Listed<I>, ProbeFailure> {
    let limit = size.0;
    let mut request = page_request::<I>(&format!("limit={limit}"));
    let (mut items, mut sent) = (Vec::new(), None);
    let (mut largest, mut all, mut decoded) = (0, 0, 0);
    for number in 1..=MAX_PAGES {
        let response = connection.request(&request, budget).await?;
        let (sent, received) = (*sent.get_or_insert(response.sent), response.received);
        let bytes = response.body.as_slice().len();
        (largest, all) = (largest.max(bytes), all + bytes);
        if all > I::LARGEST_LIST {
            return Err(ProbeFailure::AnswerTooLarge(I::LARGEST_LIST));
        }
        let mut page: ItemList<I> = decode_page(&response, number)?;
        // Gives its place back.
        drop(response);
        for item in &mut page.items {
            decoded += size_of_val(item);
            decoded += match item {
                Item::Ok(item) => item.trim(),
                Item::Malformed { name, reason } => name.as_ref().map_or(0, String::len) + reason.len(),
            };
        }
        kept.decoded(items.len() + page.items.len(), decoded)?;
        items.extend(page.items);
        let revision = page.metadata.revision();
        let token = page.metadata.continue_token;
        if token.is_empty() {
            size.grow::<I>(largest);
            return Ok(Listed {
                items,
                sent,
                received,
                revision,
            });
        }
        let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
        request = page_request::<I>(&format!("limit={limit}&continue={token}"));
    }
    Err(ProbeFailure::ListBrokeOff(format!(
        "it has more than {MAX_PAGES} pages"
    )))
}

fn page_request<I: Listable>(query: &str) -> ApiRequest {
    ApiRequest {
        path: format!("{}?{query}", I::PATH),
        accept: I::ACCEPT,
        most: LARGEST_ANSWER,
    }
}

/// Counts the nodes by a page of one of them. Returns none if the API server does not say how many there are.
pub(super) async fn count_nodes<C: Connector>(
    connection: &mut CachedConnection<C>,
    budget: Budget,
) -> Result<Option<usize>, ProbeFailure> {
    let request = page_request::<NodeItem>("limit=1");
    let response = connection.request(&request, budget).await?;
    let page: ItemList<NodeItem> = decode_page(&response, 1)?;
    let after = match page.metadata.remaining_item_count {
        None if page.metadata.continue_token.is_empty() => Some(0),
        remaining => remaining.and_then(|remaining| usize::try_from(remaining).ok()),
    };
    Ok(after.map(|after| page.items.len().saturating_add(after)))
}

/// Decodes the page of this number.
fn decode_page<I: Listable>(response: &ApiResponse, number: usize) -> Result<ItemList<I>, ProbeFailure> {
    let broken = |why: String| match number {
        1 => ProbeFailure::ListFailed(why),
        _ => ProbeFailure::ListBrokeOff(format!("page {number}: {why}")),
    };
    let body = response.body.as_slice();
    let page = match response.status {
        StatusCode::OK => I::page(body).map_err(|e| broken(e.to_string()))?,
        StatusCode::TOO_MANY_REQUESTS => return Err(ProbeFailure::Throttled(response.retry_after)),
        StatusCode::UNAUTHORIZED => return Err(ProbeFailure::Unauthorized),
        StatusCode::FORBIDDEN => return Err(ProbeFailure::Forbidden(vec![I::PERMISSION])),
        status => return Err(broken(format!("{status}{}", message(body)))),
    };
    match page.metadata.continue_token.len() {
        0..=LONGEST_TOKEN => Ok(page),
        _ => Err(broken("the token for the next page is too long".to_owned())),
    }
}

/// The message of a `Status`, cut to a sensible length; empty when the body is something else.
fn message(body: &[u8]) -> String {
    // Nothing else of a Status: a hostile one may have millions of details.
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let json = || Some(serde_json::from_slice::<Status>(body).ok()?.message);
    match protobuf::status_message(body).or_else(json) {
        Some(message) => format!(" ({})", quote(&message)),
        None => String::new(),
    }
}
