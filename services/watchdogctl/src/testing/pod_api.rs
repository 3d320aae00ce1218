//! An API server that lists Deployments and pods, has Secrets, and forwards ports as the Kubernetes API does
//! (WebSocket, `v4.channel.k8s.io`). Forwarding to a real pod needs a kubelet, which the real control planes of the
//! tests do not have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::{SinkExt as _, StreamExt as _};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_util::task::AbortOnDropHandle;

use crate::program::Program;

const PROTOCOL: &str = "v4.channel.k8s.io";

/// Name of the Secret that the Deployments of [`deployment`] name.
pub(crate) const SECRET: &str = "my-certificate";

/// Port of the gRPC API in a pod.
const GRPC_PORT: u16 = 9645;

/// The Deployment of a program, as the chart renders it in namespace `garden`.
pub(crate) fn deployment(namespace: &str, release: &str, program: Program, replicas: i32) -> Value {
    let labels =
        json!({"app.kubernetes.io/component": program.as_str(), "app.kubernetes.io/instance": release});
    let mut all = labels.clone();
    all["helm.sh/chart"] = "dependency-watchdog-0.1.0".into();
    json!({
        "metadata": {
            "name": format!("{release}-{program}"),
            "namespace": namespace,
            "labels": all,
            "annotations": {"dependency-watchdog.gardener.cloud/observer-secret": format!("garden/{SECRET}")},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"spec": {"containers": [{"name": program.as_str(), "args": ["--log-level=info"]}]}},
        },
    })
}

/// A pod of such a Deployment: ready and running.
pub(crate) fn pod(release: &str, program: Program, name: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "namespace": "garden",
            "labels": {"app.kubernetes.io/component": program.as_str(), "app.kubernetes.io/instance": release},
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": program.as_str(), "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}},
            }],
        },
    })
}

/// The same, in CrashLoopBackOff, with the end of its log.
pub(crate) fn crashing_pod(release: &str, program: Program, name: &str, log: &str) -> Value {
    let mut pod = pod(release, program, name);
    pod["status"]["conditions"][0]["status"] = "False".into();
    let container = &mut pod["status"]["containerStatuses"][0];
    container["restartCount"] = 7.into();
    container["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    container["lastState"] = json!({"terminated": {"exitCode": 2, "reason": "Error", "message": log}});
    pod
}

/// The data of Secrets by their names.
pub(crate) type Secrets = BTreeMap<String, BTreeMap<String, ByteString>>;

/// An API server that has these objects and nothing else.
#[derive(Default)]
pub(crate) struct PodApi {
    pub(crate) deployments: Vec<Value>,
    pub(crate) pods: Vec<Value>,
    /// The address of each pod by its name.
    pub(crate) addresses: BTreeMap<String, String>,
    /// The data of Secrets in namespace `garden`.
    pub(crate) secrets: Arc<Mutex<Secrets>>,
    /// The only bearer token that is accepted; anybody is without one.
    pub(crate) token: Option<Arc<Mutex<String>>>,
    /// The caller lacks the right to forward ports.
    pub(crate) forbids_forwarding: bool,
}

impl PodApi {
    /// A release with one ready pod for each of these programs at these addresses.
    pub(crate) fn release(programs: &[(Program, &str)]) -> Self {
        let pod_name = |program: &Program| format!("{program}-0");
        Self {
            deployments: Program::ALL
                .map(|program| deployment("garden", "watchdog", program, 1))
                .to_vec(),
            pods: programs
                .iter()
                .map(|(program, _)| pod("watchdog", *program, &pod_name(program)))
                .collect(),
            addresses: programs
                .iter()
                .map(|(program, address)| (pod_name(program), (*address).to_owned()))
                .collect(),
            ..Self::default()
        }
    }

    /// Serves it; returns a kubeconfig.
    async fn serve(self) -> (String, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let this = Arc::new(self);
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let this = this.clone();
                tokio::spawn(async move { this.answer(connection).await });
            }
        });
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: other\n\
             clusters: [{{name: seed, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: me, user: {{}}}}]\n\
             contexts:\n- {{name: other, context: {{cluster: none, user: me}}}}\n\
             - {{name: seed, context: {{cluster: seed, user: me}}}}\n"
        );
        (kubeconfig, AbortOnDropHandle::new(task))
    }

    async fn answer(&self, mut connection: TcpStream) {
        let mut head = vec![0; 8 * 1024];
        let read = connection.peek(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..read]).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        if let Some(token) = &self.token {
            let wanted = format!("authorization: bearer {}\r\n", token.lock().unwrap());
            if !head.to_lowercase().contains(&wanted) {
                let mut unread = vec![0; read];
                connection.read_exact(&mut unread).await.unwrap();
                let answer = "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                return connection.write_all(answer.as_bytes()).await.unwrap();
            }
        }
        if let Some((pod, _)) = path
            .strip_prefix("/api/v1/namespaces/garden/pods/")
            .and_then(|rest| rest.split_once("/portforward?"))
            .filter(|_| !self.forbids_forwarding)
        {
            return self.forward(pod, connection).await;
        }
        let (code, body) = self.object(&path);
        let mut unread = vec![0; read];
        connection.read_exact(&mut unread).await.unwrap();
        let head = format!(
            "HTTP/1.1 {code}\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        connection
            .write_all(&[head.as_bytes(), &body].concat())
            .await
            .unwrap();
    }

    fn object(&self, path: &str) -> (&'static str, Vec<u8>) {
        let (resource, query) = path.split_once('?').unwrap_or((path, ""));
        let named = resource.strip_prefix("/api/v1/namespaces/garden/secrets/");
        if let Some(data) = named.and_then(|name| self.secrets.lock().unwrap().get(name).cloned()) {
            return (
                "200 OK",
                json!({"metadata": {}, "data": data}).to_string().into_bytes(),
            );
        }
        let lists = [
            ("/apis/apps/v1", "deployments", &self.deployments),
            ("/api/v1", "pods", &self.pods),
        ];
        for (group, plural, objects) in lists {
            let Some(place) = resource
                .strip_prefix(group)
                .and_then(|rest| rest.strip_suffix(plural))
                .and_then(|rest| rest.strip_suffix('/'))
            else {
                continue;
            };
            let namespace = place.strip_prefix("/namespaces/");
            let is_asked = |object: &&Value| {
                namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
                    && is_selected(&object["metadata"]["labels"], query)
            };
            let items: Vec<&Value> = objects.iter().filter(is_asked).collect();
            return (
                "200 OK",
                json!({"metadata": {}, "items": items}).to_string().into_bytes(),
            );
        }
        let message = format!("user me cannot get {path}");
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": 403, "reason": "Forbidden", "message": message,
        });
        ("403 Forbidden", status.to_string().into_bytes())
    }

    /// Channel 0 has the bytes, channel 1 an error; both begin with the number of the port.
    #[allow(clippy::result_large_err, reason = "the signature of a handshake")]
    async fn forward(&self, pod: &str, connection: TcpStream) {
        let accept = |_: &Request, mut response: Response| {
            let headers = response.headers_mut();
            headers.insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
            Ok(response)
        };
        let stream = tokio_tungstenite::accept_hdr_async(connection, accept).await;
        let (mut sink, mut source) = stream.unwrap().split();
        let [low, high] = GRPC_PORT.to_le_bytes();
        for channel in [0, 1] {
            let first = vec![channel, low, high];
            sink.send(Message::Binary(first.into())).await.unwrap();
        }
        let address = &self.addresses[pod];
        let Ok(service) = TcpStream::connect(address).await else {
            let error = [&[1], "connection refused in the pod".as_bytes()].concat();
            sink.send(Message::Binary(error.into())).await.unwrap();
            sink.close().await.unwrap();
            // What the client has sent until it reads the end is read, so that no reset overtakes the error.
            while let Some(Ok(_)) = source.next().await {}
            return;
        };
        let (mut from_service, mut to_service) = service.into_split();
        let upstream = async {
            while let Some(Ok(message)) = source.next().await {
                let bytes = message.into_data();
                if let Some((0, bytes)) = bytes.split_first()
                    && to_service.write_all(bytes).await.is_err()
                {
                    break;
                }
            }
        };
        let downstream = async {
            let mut buffer = vec![0; 16 * 1024];
            while let Ok(read @ 1..) = from_service.read(&mut buffer).await {
                let bytes = [&[0], &buffer[..read]].concat();
                if sink.send(Message::Binary(bytes.into())).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = upstream => {}
            () = downstream => {}
        }
    }
}

/// A kubeconfig in a file, and the API server behind its context `seed`.
pub(crate) struct Seed {
    pub(crate) folder: TempDir,
    _server: AbortOnDropHandle<()>,
}

impl Seed {
    pub(crate) async fn start(api: PodApi) -> Self {
        let (kubeconfig, server) = api.serve().await;
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("seed.kubeconfig"), kubeconfig).unwrap();
        Self {
            folder,
            _server: server,
        }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("seed.kubeconfig")
    }

    pub(crate) fn options(&self) -> String {
        format!("--context seed --kubeconfig {}", self.kubeconfig().display())
    }
}

/// True if the labels match each requirement of the selector in a query: `key=value`, `key in (a,b)` or `key`.
fn is_selected(labels: &Value, query: &str) -> bool {
    let selector = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("labelSelector="));
    let selector = selector.unwrap_or_default().replace('+', " ").replace("%2F", "/");
    let selector = selector
        .replace("%3D", "=")
        .replace("%28", "(")
        .replace("%29", ")");
    let selector = selector.replace("%2C", ",");
    let (within, rest) = match selector.split_once(" in (") {
        Some((key, rest)) => {
            let (values, rest) = rest.split_once(')').unwrap();
            (Some((key.to_owned(), values.to_owned())), rest.to_owned())
        }
        None => (None, selector),
    };
    let is_within = within.is_none_or(|(key, values)| {
        let label = labels[&key].as_str();
        values.split(',').any(|value| label == Some(value))
    });
    is_within
        && rest
            .split(',')
            .filter(|part| !part.is_empty())
            .all(|part| match part.split_once('=') {
                Some((key, value)) => labels[key] == value,
                None => labels.get(part).is_some(),
            })
}
