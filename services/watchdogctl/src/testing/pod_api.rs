//! An API server that lists pods, has a Secret, and forwards ports as the Kubernetes API does (WebSocket,
//! `v4.channel.k8s.io`). Forwarding to a real pod needs a kubelet, which the real control planes of the tests do not
//! have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::{SinkExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_util::task::AbortOnDropHandle;

const PROTOCOL: &str = "v4.channel.k8s.io";

/// Name of the Secret.
pub(crate) const SECRET: &str = "my-certificate";

/// Port of the gRPC API in a pod.
const GRPC_PORT: u16 = 9645;

/// An API server that has pods, one Secret and nothing else.
pub(crate) struct PodApi {
    /// Program to the address of its only pod.
    pub(crate) pods: BTreeMap<String, String>,
    pub(crate) secret: Secret,
    /// The only bearer token that is accepted; anybody is without one.
    pub(crate) token: Option<Arc<Mutex<String>>>,
}

impl PodApi {
    /// Serves it; returns a kubeconfig.
    pub(crate) async fn serve(self) -> (String, AbortOnDropHandle<()>) {
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
        {
            return self.forward(pod, connection).await;
        }
        let (code, body) = self.object(&path);
        let mut unread = vec![0; read];
        connection.read_exact(&mut unread).await.unwrap();
        let answer = format!(
            "HTTP/1.1 {code}\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(answer.as_bytes()).await.unwrap();
    }

    fn object(&self, path: &str) -> (&'static str, String) {
        if path == format!("/api/v1/namespaces/garden/secrets/{SECRET}") {
            return ("200 OK", serde_json::to_string(&self.secret).unwrap());
        }
        if path.starts_with("/api/v1/namespaces/garden/pods?") {
            let named = |program: &&String| path.contains(&format!("component%3D{program}"));
            let pods: Vec<_> = self
                .pods
                .keys()
                .filter(named)
                .map(|program| {
                    json!({
                        "metadata": {"name": format!("{program}-0"), "namespace": "garden"},
                        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                    })
                })
                .collect();
            let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods});
            return ("200 OK", list.to_string());
        }
        let message = format!("user me cannot get {path}");
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": 403, "reason": "Forbidden", "message": message,
        });
        ("403 Forbidden", status.to_string())
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
        let address = &self.pods[pod.strip_suffix("-0").unwrap()];
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
