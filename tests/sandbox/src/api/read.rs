//! GET of objects and collections.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use serde::{Deserialize, Serialize};
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
        selector::{FieldSelector, LabelSelector},
    },
};

/// Position of a paged list, as the real server encodes it.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    v: String,
    rv: u64,
    /// `namespace/name` after which the next page starts.
    start: String,
}

impl Continue {
    const VERSION: &'static str = "meta.k8s.io/v1";

    fn encode(page: &ListPage) -> Option<String> {
        let last = page.items.last()?.key();
        let token = Self {
            v: Self::VERSION.into(),
            rv: page.revision,
            start: format!("{}/{}", last.namespace, last.name),
        };
        Some(URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).ok()?))
    }

    fn decode(text: &str) -> Result<(u64, StoreKey), ApiError> {
        let invalid = || ApiError::bad_request("continue key is not valid");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let (namespace, name) = token.start.split_once('/').ok_or_else(invalid)?;
        if token.v != Self::VERSION {
            return Err(invalid());
        }
        Ok((token.rv, StoreKey::new(namespace, name)))
    }
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

/// The selectors of a request; a name in the path counts as one.
pub(super) fn filter(res: &ResourceType, target: &Target, query: &Query) -> Result<ListQuery, ApiError> {
    let mut fields = FieldSelector::parse(query.get("fieldSelector"), res)?;
    if !target.name.is_empty() {
        fields = fields.and(FieldSelector::name(&target.name));
    }
    Ok(ListQuery {
        namespace: (!target.namespace.is_empty()).then(|| target.namespace.clone()),
        labels: LabelSelector::parse(query.get("labelSelector"))?,
        fields,
        ..ListQuery::default()
    })
}

/// GET of one object.
pub(super) fn get(
    store: &Store,
    res: &ResourceType,
    target: &Target,
    query: &Query,
    view: Representation,
) -> Result<Response<Body>, ApiError> {
    not_in_the_future(store, query)?;
    let object = store.get(&target.resource, &target.namespace, &target.name)?;
    Ok(reply::json(200, view.object(&object, res)?))
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
    if view == Representation::Partial {
        return Err(ApiError::not_acceptable(
            "you requested PartialObjectMetadata, but the requested object is a list",
        ));
    }
    let mut wanted = filter(res, target, query)?;
    wanted.limit = match query.get("limit") {
        "" => 0,
        limit => limit
            .parse()
            .map_err(|_| ApiError::bad_request(format!("invalid limit \"{limit}\"")))?,
    };
    let token = query.get("continue");
    if !token.is_empty() {
        if version(query.get("resourceVersion"))?.is_some() {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let (revision, after) = Continue::decode(token)?;
        wanted.revision = Some(revision);
        wanted.after = Some(after);
    } else if query.get("resourceVersionMatch") == "Exact" {
        wanted.revision = version(query.get("resourceVersion"))?;
    } else {
        not_in_the_future(store, query)?;
    }
    let page = store.list(&target.resource, &wanted)?;
    Ok(match protobuf {
        true => reply::protobuf(200, lease_list(&page).document()),
        false => reply::json(200, encode(res, &page, &wanted, view)),
    })
}

fn not_in_the_future(store: &Store, query: &Query) -> Result<(), ApiError> {
    let current = store.revision();
    match version(query.get("resourceVersion"))? {
        Some(asked) if asked > current => Err(ApiError::too_large_version(asked, current)),
        _ => Ok(()),
    }
}

fn lease_list(page: &ListPage) -> LeaseList {
    let more = page.remaining > 0;
    LeaseList {
        metadata: Some(ListMeta {
            resource_version: page.revision.to_string(),
            continue_token: more.then(|| Continue::encode(page)).flatten().unwrap_or_default(),
            remaining_item_count: None,
        }),
        items: page.items.iter().map(|object| object.value().into()).collect(),
    }
}

/// Joins the items' JSON, which each object makes only once.
fn encode(res: &ResourceType, page: &ListPage, wanted: &ListQuery, view: Representation) -> Bytes {
    let mut metadata = json!({ "resourceVersion": page.revision.to_string() });
    if page.remaining > 0 {
        metadata["continue"] = Continue::encode(page).into();
        // The real server cannot count what it has not filtered yet.
        if wanted.labels.is_empty() && wanted.fields.is_empty() {
            metadata["remainingItemCount"] = page.remaining.into();
        }
    }
    let (kind, version) = match view {
        Representation::Full => (format!("{}List", res.kind), res.api_version()),
        Representation::Partial | Representation::PartialList => {
            ("PartialObjectMetadataList".into(), "meta.k8s.io/v1".into())
        }
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
