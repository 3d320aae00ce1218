//! 429 to every request.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Until the client ends.
pub(super) async fn serve(client: TlsStream<TcpStream>, retry_after: u32) {
    let answer = move |_: Request<Incoming>| async move {
        let mut response = Response::new(Full::new(Bytes::from_static(b"too many requests")));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(retry_after));
        Ok::<_, Infallible>(response)
    };
    // How it ended is the client's business.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(client), service_fn(answer))
        .await;
}
