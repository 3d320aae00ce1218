//! The sockets of a service.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};

use crate::backoff::Backoff;
use crate::failure::is_local_limit;
use crate::open_files::with_reserve;

/// The error of Linux for a family of addresses that the kernel does not have.
const EAFNOSUPPORT: i32 = 97;

/// Binds the address of an option. On a kernel without IPv6, `[::]` stands for all addresses of IPv4.
///
/// # Errors
/// When it cannot be bound; names the option.
pub async fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        Err(error) => match without_ipv6(address, &error) {
            Some(ipv4) => TcpListener::bind(ipv4).await,
            None => Err(error),
        },
        bound => bound,
    };
    bound.with_context(|| {
        format!("cannot listen on {address}: choose another address with {flag}, port 0 takes a free one")
    })
}

/// All addresses of IPv4, to be bound instead of those of a kernel that has no IPv6; `None` after every other error.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let no_ipv6 = error.raw_os_error() == Some(EAFNOSUPPORT);
    let everywhere = address.is_ipv6() && address.ip().is_unspecified();
    (no_ipv6 && everywhere).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// The connections that come to a socket.
#[derive(Debug)]
pub struct Acceptor {
    /// The socket.
    pub listener: TcpListener,
    /// The log message for a connection that cannot be accepted.
    pub refusal: &'static str,
    /// When no other file descriptor is left, a connection gets one of the reserve.
    pub uses_reserve: bool,
}

/// A connection that has just been opened.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The connection.
    pub tcp: TcpStream,
    /// A socket of both families shows callers from IPv4 as ::ffff:192.0.2.1; here they have their address of IPv4.
    pub address: SocketAddr,
    /// Its file descriptor is one of the reserve.
    pub from_reserve: bool,
}

impl Acceptor {
    /// Waits for the next connection. Safe to cancel.
    pub async fn next(&self) -> AcceptedConnection {
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
        loop {
            match self.accept().await {
                Ok(accepted) => return accepted,
                // Out of file descriptors, or the peer was gone already: the listener itself is fine.
                Err(error) => {
                    tracing::warn!(%error, "{}", self.refusal);
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<AcceptedConnection> {
        let mut from_reserve = false;
        let (tcp, address) = poll_fn(|context| {
            let accepted = self.listener.poll_accept(context);
            let is_local = matches!(&accepted, Poll::Ready(Err(error)) if is_local_limit(error));
            from_reserve = is_local && self.uses_reserve;
            if from_reserve {
                // The kernel needs a file descriptor even to look for a connection. Often there is none, and the
                // reserve stays whole.
                with_reserve(|| self.listener.poll_accept(context))
            } else {
                accepted
            }
        })
        .await?;
        Ok(AcceptedConnection {
            tcp,
            address: SocketAddr::new(address.ip().to_canonical(), address.port()),
            from_reserve,
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[test]
    fn only_a_kernel_without_ipv6_gets_ipv4() {
        let instead =
            |address: &str, code| without_ipv6(address.parse().unwrap(), &io::Error::from_raw_os_error(code));
        assert_eq!(
            instead("[::]:9645", EAFNOSUPPORT),
            Some("0.0.0.0:9645".parse().unwrap())
        );
        const EADDRINUSE: i32 = 98;
        assert_eq!(instead("[::]:9645", EADDRINUSE), None);
        assert_eq!(
            instead("[::1]:9645", EAFNOSUPPORT),
            None,
            "it was asked for by name"
        );
        assert_eq!(instead("0.0.0.0:9645", EAFNOSUPPORT), None);
    }

    #[tokio::test]
    async fn a_connection_gets_a_file_descriptor_of_the_reserve_when_no_other_is_left() {
        let incoming = Acceptor {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            refusal: "cannot accept",
            uses_reserve: true,
        };
        let address = incoming.listener.local_addr().unwrap();
        let connect = || std::net::TcpStream::connect(address);
        let _clients = [connect().unwrap(), connect().unwrap()];
        assert!(!incoming.accept().await.unwrap().from_reserve);

        let all = getrlimit(Resource::Nofile);
        // Standard input has the only number below this.
        let none_left = Rlimit {
            current: Some(1),
            ..all
        };
        setrlimit(Resource::Nofile, none_left).unwrap();
        let accepted = incoming.accept().await.unwrap();
        let refused = connect().unwrap_err();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, all).unwrap();

        assert!(accepted.from_reserve);
        assert!(is_local_limit(&refused), "{refused}");
        assert_eq!(limit, none_left);
    }
}
