//! The sockets of a service.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use tokio::net::TcpListener;

/// The error of Linux for a family of addresses that the kernel does not have.
const EAFNOSUPPORT: i32 = 97;

/// Binds the address of an option.
pub(crate) async fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    listen(address).await.with_context(|| {
        format!("cannot listen on {address}: choose another address with {flag}, port 0 takes a free one")
    })
}

/// Binds an address. On a kernel without IPv6, `[::]` stands for all addresses of IPv4.
///
/// # Errors
/// When it cannot be bound.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) => match without_ipv6(address, &error) {
            Some(ipv4) => TcpListener::bind(ipv4).await,
            None => Err(error),
        },
        bound => bound,
    }
}

/// All addresses of IPv4, to be bound instead of those of a kernel that has no IPv6; `None` after every other error.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let no_ipv6 = error.raw_os_error() == Some(EAFNOSUPPORT);
    let everywhere = address.is_ipv6() && address.ip().is_unspecified();
    (no_ipv6 && everywhere).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

#[cfg(test)]
mod tests {
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
}
