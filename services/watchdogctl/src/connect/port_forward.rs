//! Programs in pods, through the API server of the seed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio_util::io::StreamReader;
use watchdog_kube::seed::{connect_by_file, shown};

use super::{GRPC_PORT, Transport};
use crate::args::ConnectArgs;
use crate::error::CommandError;
use crate::program::Program;

/// A request to the API server of the seed takes at most this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pods of one program at most.
const MAX_PODS: u32 = 100;

/// Forwards ports through the API server of a seed.
#[derive(Clone)]
pub(super) struct PortForward {
    seed: Client,
    namespace: String,
    name: String,
    /// Pods that were listed and not connected to yet.
    listed: Arc<Mutex<Vec<String>>>,
}

/// A client for the seed of the kubeconfig.
///
/// # Errors
/// When no kubeconfig can be used.
pub(crate) async fn seed(args: &ConnectArgs) -> Result<Client, CommandError> {
    let unusable = |why: String| {
        CommandError::usage(
            format!("cannot reach the seed: {why}"),
            "set --kubeconfig and --context to the seed, or name the programs with --lease-probe, \
             --scaling-coordinator and --weeder",
        )
    };
    let agent = concat!("watchdogctl/", env!("CARGO_PKG_VERSION"));
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    let seed = connect_by_file(kubeconfig, context, agent, &|name| std::env::var(name).ok()).await;
    seed.map_err(|error| unusable(format!("{error:#}")))
}

impl PortForward {
    /// Reads the kubeconfig.
    pub(super) async fn open(args: &ConnectArgs) -> Result<Self, CommandError> {
        Ok(Self {
            seed: seed(args).await?,
            namespace: args.namespace.clone(),
            name: args.name.clone(),
            listed: Arc::default(),
        })
    }

    /// The same, whose next connection goes to one of these pods without a list before it.
    pub(super) fn remembering(&self, pods: Vec<String>) -> Self {
        Self {
            listed: Arc::new(Mutex::new(pods)),
            ..self.clone()
        }
    }

    /// The names of the ready pods of a program, in order.
    pub(super) async fn ready_pods(&self, program: Program) -> Result<Vec<String>, CommandError> {
        let labels = format!(
            "app.kubernetes.io/name={},app.kubernetes.io/component={program}",
            self.name
        );
        let params = ListParams::default().labels(&labels).limit(MAX_PODS);
        let pods: Api<Pod> = Api::namespaced(self.seed.clone(), &self.namespace);
        let listed = self.request("list pods", pods.list(&params)).await?;
        let mut names: Vec<String> = listed.items.into_iter().filter_map(ready).collect();
        names.sort();
        if names.is_empty() {
            return Err(CommandError::unreachable(
                format!(
                    "no ready pod of {program} in namespace {} ({labels})",
                    self.namespace
                ),
                format!(
                    "kubectl -n {} get pods lists the pods; set --namespace and --name to those of the release",
                    self.namespace
                ),
            ));
        }
        Ok(names)
    }

    /// A connection to any ready pod of a program.
    pub(super) async fn connect_any(self, program: Program) -> io::Result<Box<dyn Transport>> {
        let mut pods = std::mem::take(&mut *self.listed.lock().unwrap_or_else(PoisonError::into_inner));
        if pods.is_empty() {
            pods = self.ready_pods(program).await.map_err(io::Error::other)?;
        }
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for pod in pods {
            match self.connect(&pod).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// A connection to a pod.
    pub(super) async fn connect(&self, pod: &str) -> io::Result<Box<dyn Transport>> {
        let pods: Api<Pod> = Api::namespaced(self.seed.clone(), &self.namespace);
        let refused = |error: kube::Error| {
            let why = shown(&error);
            io::Error::other(format!(
                "port-forward to pod {pod}: {why}; it needs get and create on pods/portforward in {}",
                self.namespace
            ))
        };
        let mut forwarder = pods.portforward(pod, &[GRPC_PORT]).await.map_err(refused)?;
        let absent = || io::Error::other("the API server does not forward the port");
        let stream = forwarder.take_stream(GRPC_PORT).ok_or_else(absent)?;
        let error = forwarder.take_error(GRPC_PORT).ok_or_else(absent)?;
        Ok(Box::new(with_reason(stream, error)))
    }

    /// The data of a Secret: `NAME`, or `NAMESPACE/NAME`.
    pub(super) async fn secret(&self, name: &str) -> Result<BTreeMap<String, ByteString>, CommandError> {
        let (namespace, name) = name.split_once('/').unwrap_or((&self.namespace, name));
        let secrets: Api<Secret> = Api::namespaced(self.seed.clone(), namespace);
        let what = format!("read the Secret {name}");
        let secret = self.request(&what, secrets.get(name)).await?;
        Ok(secret.data.unwrap_or_default())
    }

    async fn request<T>(
        &self,
        what: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CommandError> {
        let namespace = &self.namespace;
        match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(CommandError::usage(
                format!("cannot {what} in namespace {namespace}: {}", status.message),
                "use a kubeconfig with this permission, or set addresses and certificate files",
            )),
            Ok(Err(error)) => Err(CommandError::unreachable(
                format!("cannot {what} in namespace {namespace}: {}", shown(&error)),
                "check --kubeconfig, --context and the connection to the API server of the seed",
            )),
            Err(_) => Err(CommandError::unreachable(
                format!("cannot {what} in namespace {namespace}: no answer within 10 s"),
                "check the connection to the API server of the seed",
            )),
        }
    }
}

/// The bytes of a forwarded port, whose end says why it ended: the API server reports on a channel of its own that
/// nothing listens in the pod.
fn with_reason(
    bytes: DuplexStream,
    error: impl Future<Output = Option<String>> + Send + 'static,
) -> impl Transport {
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

/// The name of a pod that is ready and stays.
fn ready(pod: Pod) -> Option<String> {
    let conditions = pod
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    let is_ready = conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let stays = pod.metadata.deletion_timestamp.is_none();
    pod.metadata.name.filter(|_| is_ready && stays)
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

    #[test]
    fn only_pods_count_that_are_ready_and_stay() {
        let pod = |ready: &str, deleted: Option<&str>| -> Pod {
            let pod = serde_json::json!({
                "metadata": {"name": "lease-probe-0", "deletionTimestamp": deleted},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            serde_json::from_value(pod).unwrap()
        };
        assert_eq!(ready(pod("True", None)).as_deref(), Some("lease-probe-0"));
        assert_eq!(ready(pod("False", None)), None);
        assert_eq!(ready(pod("True", Some("2026-01-01T00:00:00Z"))), None);
        assert_eq!(ready(Pod::default()), None);
    }
}
