//! A gRPC server and its callers in one process, joined by pipes in memory.

use std::io;

use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::RoutesBuilder;
use tonic::transport::{Channel, Server};
use watchdog_runtime::grpc_client::Dialer;
use watchdog_runtime::service_builder::ServiceBuilder;

/// Bytes that a pipe holds in each direction: as many as a stream may send before they are read.
const PIPE_BYTES: usize = 64 * 1024;

/// Pipes that wait for the server. The one caller opens the next pipe when the last one has ended.
const MAX_PENDING: usize = 4;

/// Serves the routes and returns a channel to them. Only this process can call.
///
/// # Errors
/// Never; the address of the channel is a constant.
pub(crate) fn channel(base: &ServiceBuilder, routes: RoutesBuilder) -> anyhow::Result<Channel> {
    let (opened, pipes) = mpsc::channel::<io::Result<DuplexStream>>(MAX_PENDING);
    let stop = base.draining.clone();
    base.tasks.critical("in-process-grpc", async move {
        let server = Server::builder().add_routes(routes.routes());
        let pipes = ReceiverStream::new(pipes);
        Ok(server
            .serve_with_incoming_shutdown(pipes, stop.cancelled_owned())
            .await?)
    });
    let dialer = Dialer {
        tls: None,
        server_name: "localhost".to_owned(),
    };
    let connect = move |_| {
        let opened = opened.clone();
        async move {
            let (client, server) = duplex(PIPE_BYTES);
            let handed_over = opened.send(Ok(server)).await;
            handed_over.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            Ok(client)
        }
    };
    Ok(dialer.channel_over("in-process:0", connect)?)
}
