//! One HTTP request on a connection of its own, written by hand: no client follows, retries or pools anything.

use anyhow::Context;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::wait::BOUND;

/// GET from an address: the status code and the body.
pub async fn get(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    exchange(TcpStream::connect(address).await?, "GET", path, "").await
}

/// The value of one series of /metrics at an address, by its name with its labels as they stand there; none when it is
/// not there.
pub async fn metric(address: &str, series: &str) -> anyhow::Result<Option<f64>> {
    let (_, text) = get(address, "/metrics").await?;
    let mut lines = text.lines();
    Ok(lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok()))
}

/// Sends a request on this stream, and reads its status code and its body as it comes.
pub async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let answer = async {
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = timeout(BOUND, answer).await.context("no answer")??;
    let code = answer
        .split_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    code.zip(body).context("no HTTP answer")
}
