//! Answers that no API server should give.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// One answer to everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedAnswer {
    /// 200 with bytes that are no JSON, declared as JSON.
    Garbage,
    /// 200 with a page for people, as captive portals and login pages do.
    Html,
    /// 307 to somewhere else.
    Redirect,
    /// 429, to be asked again in this many seconds.
    Throttled(u32),
}

/// Until the client ends.
pub(super) async fn serve(client: TlsStream<TcpStream>, canned: FixedAnswer) {
    let service = service_fn(move |_: Request<Incoming>| async move { Ok::<_, Infallible>(answer(canned)) });
    // How it ended is the client's business.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(client), service)
        .await;
}

fn answer(canned: FixedAnswer) -> Response<Full<Bytes>> {
    let (status, kind, body) = match canned {
        FixedAnswer::Garbage => (
            StatusCode::OK,
            "application/json",
            &b"\x00\xff{\"items\":[\x01"[..],
        ),
        FixedAnswer::Html => (
            StatusCode::OK,
            "text/html",
            &b"<!doctype html><title>Please log in</title>"[..],
        ),
        FixedAnswer::Redirect => (StatusCode::TEMPORARY_REDIRECT, "text/plain", &b"over there"[..]),
        FixedAnswer::Throttled(_) => (
            StatusCode::TOO_MANY_REQUESTS,
            "text/plain",
            &b"too many requests"[..],
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    match canned {
        // A name that exists nowhere: a client that follows it is caught by its silence.
        FixedAnswer::Redirect => {
            drop(headers.insert(LOCATION, HeaderValue::from_static("https://elsewhere.invalid/")))
        }
        FixedAnswer::Throttled(seconds) => drop(headers.insert(RETRY_AFTER, HeaderValue::from(seconds))),
        _ => {}
    }
    response
}
