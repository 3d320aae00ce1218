//! The sockets of a service, bound before anything else starts.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;

use crate::args::CommonArgs;

/// Bound sockets.
#[derive(Debug)]
pub struct Listeners {
    /// For the gRPC API.
    pub grpc: TcpListener,
    /// For the admin endpoint.
    pub admin: TcpListener,
}

impl Listeners {
    /// Binds both addresses: a port in use is found out at the start, and port 0 is known before it is announced.
    ///
    /// # Errors
    /// When one of them cannot be bound.
    pub async fn bind(args: &CommonArgs) -> anyhow::Result<Self> {
        let bind = async |flag: &str, address: SocketAddr| {
            TcpListener::bind(address).await.with_context(|| {
                format!(
                    "cannot listen on {address}: choose another address with {flag}, port 0 takes a free one"
                )
            })
        };
        let grpc = bind("--grpc-addr", args.grpc_addr).await?;
        let admin = bind("--admin-addr", args.admin_addr).await?;
        tracing::info!(
            grpc_addr = %grpc.local_addr()?,
            admin_addr = %admin.local_addr()?,
            "listening"
        );
        Ok(Self { grpc, admin })
    }
}
