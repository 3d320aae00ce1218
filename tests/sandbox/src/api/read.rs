//! GET of objects and collections.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use serde_json::json;

use super::{
    path::{Query, Target},
    reply::{self, Body, Representation},
};
use crate::{
    protobuf::{LeaseList, ListMeta},
    resource::ResourceType,
    status::ApiError,
    store::{
        ListPage, ListQuery, Store,
        object::StoreKey,
        selector::{self, LabelSelector},
    },
};

/// The token of the next page: the revision of the list, and after which object the page starts.
fn continue_token(page: &ListPage) -> Option<String> {
    let last = page.items.last().filter(|_| page.remaining > 0)?.key();
    Some(URL_SAFE_NO_PAD.encode(format!("{}/{}/{}", page.revision, last.namespace, last.name)))
}

fn decode_token(token: &str) -> Option<(u64, StoreKey)> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (revision, key) = text.split_once('/')?;
    let (namespace, name) = key.split_once('/')?;
    Some((revision.parse().ok()?, StoreKey::new(namespace, name)))
}

/// A resourceVersion parameter: absent and "0" are `None`.
pub(super) fn version(text: &str) -> Result<Option<u64>, ApiError> {
    match text {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!(
                "Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
            ))
        }),
    }
}

/// The selectors of a request.
pub(super) fn filter(target: &Target, query: &Query) -> Result<ListQuery, ApiError> {
    Ok(ListQuery {
        namespace: (!target.namespace.is_empty()).then(|| target.namespace.clone()),
        labels: LabelSelector::parse(query.get("labelSelector"))?,
        name: selector::selected_name(query.get("fieldSelector"))?,
        ..ListQuery::default()
    })
}

/// GET of one object.
pub(super) fn get(
    store: &Store,
    res: &ResourceType,
    target: &Target,
    view: Representation,
) -> Result<Response<Body>, ApiError> {
    let object = store.get(&target.resource, &target.namespace, &target.name)?;
    Ok(reply::json(200, view.object(&object, res)))
}

/// GET of a collection, of Leases also in Protobuf.
pub(super) fn list(
    store: &Store,
    res: &ResourceType,
    target: &Target,
    query: &Query,
    view: Representation,
    protobuf: bool,
) -> Result<Response<Body>, ApiError> {
    let mut wanted = filter(target, query)?;
    wanted.limit = match query.get("limit") {
        "" => 0,
        limit => limit
            .parse()
            .map_err(|_| ApiError::bad_request(format!("invalid limit \"{limit}\"")))?,
    };
    let token = query.get("continue");
    if !token.is_empty() {
        let start = decode_token(token);
        let (revision, after) = start.ok_or_else(|| ApiError::bad_request("continue key is not valid"))?;
        wanted.revision = Some(revision);
        wanted.after = Some(after);
    }
    let page = store.list(&target.resource, &wanted)?;
    Ok(match protobuf {
        true => reply::protobuf(200, lease_list(&page).document()),
        false => reply::json(200, encode(res, &page, view)),
    })
}

fn lease_list(page: &ListPage) -> LeaseList {
    LeaseList {
        metadata: Some(ListMeta {
            resource_version: page.revision.to_string(),
            continue_token: continue_token(page).unwrap_or_default(),
            remaining_item_count: i64::try_from(page.remaining).ok().filter(|count| *count > 0),
        }),
        items: page.items.iter().map(|object| object.value().into()).collect(),
    }
}

/// Joins the items' JSON, which each object makes only once.
fn encode(res: &ResourceType, page: &ListPage, view: Representation) -> Bytes {
    let mut metadata = json!({ "resourceVersion": page.revision.to_string() });
    if let Some(token) = continue_token(page) {
        metadata["continue"] = token.into();
        metadata["remainingItemCount"] = page.remaining.into();
    }
    let (kind, version) = match view {
        Representation::Full => (format!("{}List", res.kind), res.api_version()),
        Representation::Partial => ("PartialObjectMetadataList".into(), "meta.k8s.io/v1".into()),
    };
    let mut out = BytesMut::new();
    out.put_slice(
        format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[")
            .as_bytes(),
    );
    for (index, object) in page.items.iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        let json = if view == Representation::Full {
            object.item_json(res)
        } else {
            object.partial_json()
        };
        out.put_slice(&json);
    }
    out.put_slice(b"]}");
    out.freeze()
}
