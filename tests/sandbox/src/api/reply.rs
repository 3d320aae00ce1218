//! Responses, and what the client accepts.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use crate::{
    protobuf::MEDIA_TYPE,
    resource::ResourceType,
    status::ApiError,
    store::object::{Object, encode},
};

/// A response body: bytes at once, or a watch.
pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// A response with a JSON body.
pub(super) fn json(code: u16, body: Bytes) -> Response<ResponseBody> {
    streaming(code, Full::new(body).boxed_unsync(), "application/json")
}

/// A response in Kubernetes' Protobuf encoding.
pub(super) fn protobuf(code: u16, body: Bytes) -> Response<ResponseBody> {
    streaming(code, Full::new(body).boxed_unsync(), MEDIA_TYPE)
}

/// A response with a JSON value.
pub(super) fn value(code: u16, value: &serde_json::Value) -> Response<ResponseBody> {
    json(code, encode(value))
}

/// A `Status` response.
pub(super) fn error(error: &ApiError) -> Response<ResponseBody> {
    if error.plain {
        let text = Full::new(Bytes::from(error.message.clone()));
        return streaming(error.code, text.boxed_unsync(), "text/plain; charset=utf-8");
    }
    let mut response = value(error.code, &error.to_value());
    if let Some(seconds) = error.retry_after {
        let seconds = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

/// A response with any body.
pub(super) fn streaming(code: u16, body: ResponseBody, content_type: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

/// The form in which objects are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Representation {
    /// As they are.
    Full,
    /// `PartialObjectMetadata`, also as the items of a list.
    Partial,
}

impl Representation {
    /// Picks the first media range of an Accept header that the server can produce; of the parameters only `as` is
    /// looked at.
    pub(super) fn negotiate(accept: &str) -> Result<Self, ApiError> {
        if accept.trim().is_empty() {
            return Ok(Self::Full);
        }
        let picked = accept.split(',').find_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if !matches!(parts.next()?, "application/json" | "application/*" | "*/*") {
                return None;
            }
            match parts.find_map(|part| part.strip_prefix("as=")) {
                None => Some(Self::Full),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Some(Self::Partial),
                // Tables are not served.
                Some(_) => None,
            }
        });
        picked.ok_or_else(ApiError::not_acceptable)
    }

    /// Kind and apiVersion of the objects.
    pub(super) fn kind(self, res: &ResourceType) -> (&str, String) {
        match self {
            Self::Full => (&res.kind, res.api_version()),
            Self::Partial => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        }
    }

    /// JSON of one object.
    pub(super) fn object(self, object: &Object, res: &ResourceType) -> Bytes {
        match self {
            Self::Full => object.json(res),
            Self::Partial => object.partial_json(),
        }
    }
}
