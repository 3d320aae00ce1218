//! Programs in pods, through the API server of the seed.

use std::io;
use std::sync::Arc;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio_util::io::StreamReader;
use watchdog_client::failure::chain;
use watchdog_client::grpc_client::ByteStream;

use super::release::ChartRelease;
use super::seed::SeedReader;
use crate::error::{CommandError, CommandResult};
use crate::pods::ProgramPods;
use crate::program::Program;

/// The port of the gRPC API in a pod.
pub(super) const GRPC_PORT: u16 = 9645;

/// Forwards ports to the Pods of a release, through the API server of its seed.
#[derive(Clone)]
pub(super) struct PortForward {
    pub(super) seed: SeedReader,
    pub(super) release: Arc<ChartRelease>,
}

impl PortForward {
    /// The Pods of all programs of the release, whatever they do.
    pub(super) async fn programs(&self) -> CommandResult<Vec<ProgramPods>> {
        let programs = Program::ALL
            .into_iter()
            .filter(|program| self.release.includes(*program));
        try_join_all(programs.map(|program| self.pods(program))).await
    }

    async fn pods(&self, program: Program) -> CommandResult<ProgramPods> {
        let ChartRelease { namespace, name, .. } = &*self.release;
        let pods = match self.release.selector(program) {
            Some(selector) => self.seed.list(Some(namespace), &selector).await?,
            None => Vec::new(),
        };
        Ok(ProgramPods {
            program,
            deployment: format!("{namespace}/{name}-{program}"),
            desired: self.release.desired(program),
            pods,
        })
    }

    /// The names of the pods of a program that answer, the ready ones first.
    pub(super) async fn answering_pods(&self, program: Program) -> CommandResult<Vec<String>> {
        let ChartRelease { namespace, name, .. } = &*self.release;
        let Some(selector) = self.release.selector(program) else {
            return Err(CommandError::unreachable(
                format!("no Deployment {name}-{program} in namespace {namespace}"),
                "watchdogctl check says what else is missing",
            ));
        };
        let answering = self.pods(program).await?.answering();
        if answering.is_empty() {
            let what = format!("no pod of {program} runs in namespace {namespace} ({selector})");
            return Err(CommandError::unreachable(what, "watchdogctl check says why"));
        }
        Ok(answering)
    }

    /// A connection to a pod.
    pub(super) async fn connect(&self, pod: &str) -> io::Result<Box<dyn ByteStream>> {
        let namespace = &self.release.namespace;
        let pods: Api<Pod> = Api::namespaced(self.seed.client.clone(), namespace);
        let refused = |error: kube::Error| match error {
            kube::Error::Api(status) if status.code == 403 => io::Error::other(CommandError::usage(
                format!("cannot forward a port to pod {pod}: {}", status.message),
                format!(
                    "use a kubeconfig with get and create on pods/portforward in namespace {namespace}, or set \
                     addresses and certificate files"
                ),
            )),
            kube::Error::Api(status) => {
                io::Error::other(format!("port-forward to pod {pod}: {}", status.message))
            }
            error => io::Error::other(format!("port-forward to pod {pod}: {}", chain(&error))),
        };
        let mut forwarder = pods.portforward(pod, &[GRPC_PORT]).await.map_err(refused)?;
        let absent = || io::Error::other("the API server does not forward the port");
        let stream = forwarder.take_stream(GRPC_PORT).ok_or_else(absent)?;
        let error = forwarder.take_error(GRPC_PORT).ok_or_else(absent)?;
        Ok(Box::new(with_reason(stream, error)))
    }
}

/// The bytes of a forwarded port, whose end says why it ended: the API server reports on a channel of its own that
/// nothing listens in the pod.
fn with_reason(
    bytes: DuplexStream,
    error: impl Future<Output = Option<String>> + Send + 'static,
) -> impl ByteStream {
    let end = async move {
        match error.await {
            Some(error) => Err(io::Error::other(format!("the port-forward ended: {error}"))),
            None => Ok(b"".as_slice()),
        }
    };
    let end = StreamReader::new(Box::pin(futures::stream::once(end)));
    let (reader, writer) = tokio::io::split(bytes);
    tokio::io::join(reader.chain(end), writer)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn the_end_says_why() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = with_reason(near, async { Some("connection refused".to_owned()) });
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
        let mut stream = with_reason(near, async { None });
        drop(far);
        assert_eq!(stream.read(&mut [0; 5]).await.unwrap(), 0);
    }
}
