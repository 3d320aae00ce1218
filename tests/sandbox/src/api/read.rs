//! GET of objects and collections.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;

use super::{
    ApiAnswer, Call,
    reply::{self, Representation},
};
use crate::{
    protobuf::{LeaseList, ListMeta},
    resource::ResourceType,
    status::ApiError,
    store::{
        ListPage, ListQuery,
        selector::{self, LabelSelector},
    },
};

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

/// The objects that a request selects.
pub(super) fn selection(call: &Call<'_>) -> Result<ListQuery, ApiError> {
    let namespace = &call.target.namespace;
    Ok(ListQuery {
        namespace: (!namespace.is_empty()).then(|| namespace.clone()),
        labels: LabelSelector::parse(call.query.get("labelSelector"))?,
        name: selector::selected_name(call.query.get("fieldSelector"))?,
    })
}

/// GET of one object.
pub(super) fn get(call: &Call<'_>, res: &ResourceType) -> ApiAnswer {
    let target = call.target;
    let object = call
        .state
        .store
        .get(&target.resource, &target.namespace, &target.name)?;
    Ok(reply::json(200, call.view.object(&object, res)))
}

/// GET of a collection, of Leases also in Protobuf.
pub(super) fn list(call: &Call<'_>, res: &ResourceType, protobuf: bool) -> ApiAnswer {
    let limit = match call.query.get("limit") {
        "" | "0" => usize::MAX,
        limit => limit
            .parse()
            .map_err(|_| ApiError::bad_request(format!("invalid limit \"{limit}\"")))?,
    };
    let page = match call.query.get("continue") {
        "" => call
            .state
            .store
            .list(&call.target.resource, &selection(call)?, limit)?,
        token => call.state.store.next_page(token, limit)?,
    };
    Ok(match protobuf {
        true => reply::protobuf(200, lease_list(&page).document()),
        false => reply::json(200, encode(res, &page, call.view)),
    })
}

fn lease_list(page: &ListPage) -> LeaseList {
    LeaseList {
        metadata: Some(ListMeta {
            resource_version: page.revision.to_string(),
            continue_token: page.continue_token.clone(),
            remaining_item_count: i64::try_from(page.remaining).ok().filter(|count| *count > 0),
        }),
        items: page.items.iter().map(|object| object.value().into()).collect(),
    }
}

/// Joins the items' JSON, which each object makes only once.
fn encode(res: &ResourceType, page: &ListPage, view: Representation) -> Bytes {
    let mut metadata = json!({ "resourceVersion": page.revision.to_string() });
    if page.remaining > 0 {
        metadata["continue"] = page.continue_token.as_str().into();
        metadata["remainingItemCount"] = page.remaining.into();
    }
    let (kind, version) = view.kind(res);
    let mut out = BytesMut::new();
    let head =
        format!("{{\"kind\":\"{kind}List\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":[");
    out.put_slice(head.as_bytes());
    for (index, object) in page.items.iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        out.put_slice(&view.object(object, res));
    }
    out.put_slice(b"]}");
    out.freeze()
}
