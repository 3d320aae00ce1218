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
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The media types that the server speaks, for 406.
const ACCEPTED: &str = "only the following media types are accepted: application/json";

/// A response with a JSON body.
pub(crate) fn json(code: u16, body: Bytes) -> Response<Body> {
    with_type(code, body, "application/json")
}

/// A response in Kubernetes' Protobuf encoding.
pub(crate) fn protobuf(code: u16, body: Bytes) -> Response<Body> {
    with_type(code, body, MEDIA_TYPE)
}

/// A response with a JSON value.
pub(crate) fn value(code: u16, value: &serde_json::Value) -> Response<Body> {
    json(code, encode(value))
}

/// A response of plain text.
pub(crate) fn text(code: u16, body: impl Into<Bytes>) -> Response<Body> {
    with_type(code, body.into(), "text/plain; charset=utf-8")
}

/// A `Status` response.
pub(crate) fn error(error: &ApiError) -> Response<Body> {
    if error.plain {
        return text(error.code, error.message.clone());
    }
    let mut response = value(error.code, &error.to_value());
    if let Some(seconds) = error.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn with_type(code: u16, body: Bytes, content_type: &'static str) -> Response<Body> {
    streaming(code, Full::new(body).boxed_unsync(), content_type)
}

/// A response with any body.
pub(crate) fn streaming(code: u16, body: Body, content_type: &'static str) -> Response<Body> {
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
pub(crate) enum Representation {
    /// As they are.
    Full,
    /// `PartialObjectMetadata`, also as the items of a list.
    Partial,
}

impl Representation {
    /// Picks the first media range of an Accept header that the server can produce; of the parameters only `as` is
    /// looked at.
    pub(crate) fn negotiate(accept: &str) -> Result<Self, ApiError> {
        if accept.trim().is_empty() {
            return Ok(Self::Full);
        }
        accept
            .split(',')
            .find_map(|range| {
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
            })
            .ok_or_else(|| ApiError::new(406, "NotAcceptable", ACCEPTED))
    }

    /// JSON of one object.
    pub(crate) fn object(self, object: &Object, res: &ResourceType) -> Bytes {
        match self {
            Self::Full => object.json(res),
            Self::Partial => object.partial_json(),
        }
    }
}
