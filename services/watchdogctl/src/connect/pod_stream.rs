//! A forwarded port.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// The bytes of a forwarded port, whose end says why it ended: the API server reports on a channel of its own that
/// nothing listens in the pod.
pub(super) struct PodStream {
    bytes: DuplexStream,
    error: Option<Pin<Box<dyn Future<Output = Option<String>> + Send>>>,
}

impl PodStream {
    pub(super) fn new(
        bytes: DuplexStream,
        error: impl Future<Output = Option<String>> + Send + 'static,
    ) -> Self {
        Self {
            bytes,
            error: Some(Box::pin(error)),
        }
    }

    /// At the end of the bytes: the error, if there is one.
    fn end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(error) = &mut self.error else {
            return Poll::Ready(Ok(()));
        };
        let reported = std::task::ready!(error.as_mut().poll(context));
        self.error = None;
        Poll::Ready(match reported {
            Some(error) => Err(io::Error::other(format!("the port-forward ended: {error}"))),
            None => Ok(()),
        })
    }
}

impl AsyncRead for PodStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.bytes).poll_read(context, buffer))?;
        if buffer.filled().len() == before {
            return self.end(context);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PodStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.bytes).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn the_end_says_why() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = PodStream::new(near, async { Some("connection refused".to_owned()) });
        far.write_all(b"bytes").await.unwrap();
        drop(far);
        let mut read = [0; 5];
        stream.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"bytes", "bytes before the end are not lost");
        let error = stream.read(&mut read).await.unwrap_err();
        assert!(error.to_string().contains("connection refused"), "{error}");
        assert_eq!(stream.read(&mut read).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn an_end_without_an_error_is_an_end() {
        let (near, far) = tokio::io::duplex(64);
        let mut stream = PodStream::new(near, async { None });
        drop(far);
        assert_eq!(stream.read(&mut [0; 5]).await.unwrap(), 0);
    }
}
