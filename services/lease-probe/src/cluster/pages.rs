//! Lists of a shoot, read in pages that fit the memory for answers.

use std::pin::pin;
use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use tokio::time::Instant;
use watchdog_api::lease::LeaseItem;
use watchdog_api::list::{Item, ItemList, ListError};
use watchdog_api::node::{NodeCondition, NodeItem};
use watchdog_api::protobuf;
use watchdog_kube::watch::LIST_PAGE;

use super::answer_budget::MemoryShare;
use super::connection::{ApiResponse, CachedConnection};
use super::transport::{ApiRequest, Connector};
use crate::domain::answer_ledger::AnswerKind;
use crate::domain::outcome::{ProbeFailure, ShootPermission, quote};

/// The most objects that are asked for at once.
pub const LARGEST_PAGE: usize = LIST_PAGE as usize;

/// And the fewest, after pages that were too large: 16 nodes are about 250 kB.
const SMALLEST_PAGE: usize = 16;

/// Pages of one list at most: a shoot has at most some thousands of nodes.
const MAX_PAGES: usize = 200;

/// The longest token for a next page; that of an API server has some hundred bytes.
const LONGEST_TOKEN: usize = 4096;

/// How many objects are asked for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageSize(usize);

impl Default for PageSize {
    fn default() -> Self {
        Self(LARGEST_PAGE)
    }
}

impl PageSize {
    /// Shrinks after a list of this kind that failed because an answer was too large, or too large for the memory that
    /// was left. Returns false after any other failure, and if it is the smallest already.
    pub(super) fn shrink_after(&mut self, failure: &ProbeFailure, kind: AnswerKind) -> bool {
        let is_too_large = match failure {
            // Smaller pages do not make the whole list smaller.
            ProbeFailure::AnswerTooLarge(limit) => *limit == kind.limit(),
            ProbeFailure::NoAnswerMemory(_) => true,
            _ => false,
        };
        let before = self.0;
        if is_too_large {
            self.0 = (before / 4).max(SMALLEST_PAGE);
        }
        self.0 < before
    }

    /// After a list whose largest page had this many bytes. Grows only if twice as much is far from the limit.
    fn grow(&mut self, largest: usize, limit: usize) {
        if largest < limit / 8 {
            self.0 = (2 * self.0).min(LARGEST_PAGE);
        }
    }
}

/// A complete list.
pub(super) struct Listed<I> {
    pub(super) items: Vec<Item<I>>,
    // When the first page was asked for.
    pub(super) sent: Instant,
    // Of the whole list: an API server answers all pages from one state.
    pub(super) revision: u64,
    // The memory of the items.
    pub(super) share: MemoryShare,
}

/// An object that is listed.
pub(super) trait Listable: Sized {
    /// Where it is listed.
    const PATH: &'static str;
    /// The kind of answer that a page is.
    const ANSWER: AnswerKind;
    /// The permission that the kubeconfig's user needs for that.
    const PERMISSION: ShootPermission;

    /// Decodes a page.
    fn page(bytes: &[u8]) -> Result<ItemList<Self>, ListError>;

    /// The memory that it takes beside itself.
    fn heap_size(&self) -> usize;
}

impl Listable for LeaseItem {
    const PATH: &'static str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    const ANSWER: AnswerKind = AnswerKind::Leases;
    const PERMISSION: ShootPermission = ShootPermission::ListLeases;

    fn page(bytes: &[u8]) -> Result<ItemList<Self>, ListError> {
        Self::page::<LARGEST_PAGE>(bytes)
    }

    fn heap_size(&self) -> usize {
        self.name.len()
    }
}

impl Listable for NodeItem {
    const PATH: &'static str = "/api/v1/nodes";
    const ANSWER: AnswerKind = AnswerKind::Nodes;
    const PERMISSION: ShootPermission = ShootPermission::ListNodes;

    fn page(bytes: &[u8]) -> Result<ItemList<Self>, ListError> {
        ItemList::at_most::<LARGEST_PAGE>(bytes)
    }

    fn heap_size(&self) -> usize {
        let label = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let condition = |c: &NodeCondition| size_of_val(c) + c.kind.len() + c.status.len() + c.reason.len();
        let conditions: usize = self.conditions.iter().map(condition).sum();
        self.name.len() + label(&self.pool) + label(&self.zone) + conditions
    }
}

fn heap_size<I: Listable>(item: &Item<I>) -> usize {
    match item {
        Item::Ok(item) => item.heap_size(),
        Item::Malformed { name, reason } => name.as_ref().map_or(0, String::len) + reason.len(),
    }
}

/// Lists once, page by page.
pub(super) async fn pages<C: Connector, I: Listable>(
    connection: &mut CachedConnection<C>,
    size: &mut PageSize,
) -> Result<Listed<I>, ProbeFailure> {
    let (path, kind, limit) = (I::PATH, I::ANSWER, size.0);
    let mut request = ApiRequest::get(format!("{path}?limit={limit}"), kind);
    let (mut items, mut sent) = (Vec::new(), None);
    let (mut largest, mut all) = (0, 0);
    // Of the items of the pages before.
    let mut share: Option<MemoryShare> = None;
    for number in 1..=MAX_PAGES {
        let response = {
            // Pinned, so that no probe has room for it twice.
            let asked = pin!(connection.request(&request));
            match &share {
                None => asked.await?,
                Some(share) => share.unless_it_gives_way(asked).await??,
            }
        };
        let sent = *sent.get_or_insert(response.sent);
        let bytes = response.body.as_slice().len();
        (largest, all) = (largest.max(bytes), all + bytes);
        if all > kind.list_limit() {
            return Err(ProbeFailure::AnswerTooLarge(kind.list_limit()));
        }
        let page: ItemList<I> = decode_page(&response, number)?;
        let kept = page.items.iter().map(|item| size_of_val(item) + heap_size(item));
        let kept = kept.sum();
        let of_list = match share.take() {
            None => response.body.into_share(kept).await?,
            Some(share) => {
                share.take(kept).await?;
                share
            }
        };
        items.extend(page.items);
        let revision = page.metadata.revision();
        let token = page.metadata.continue_token;
        if token.is_empty() {
            size.grow(largest, kind.limit());
            return Ok(Listed {
                items,
                sent,
                revision,
                share: of_list,
            });
        }
        share = Some(of_list);
        let token = form_urlencoded::byte_serialize(token.as_bytes());
        let token: String = token.collect();
        request = ApiRequest::get(format!("{path}?limit={limit}&continue={token}"), kind);
    }
    Err(ProbeFailure::ListBrokeOff(format!(
        "it has more than {MAX_PAGES} pages"
    )))
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
