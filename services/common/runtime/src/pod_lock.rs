//! The lock that only one living process of an identity can hold in a Pod.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Longest name of a socket, in bytes: what Linux allows, less the first one, which is zero.
const NAME_LIMIT: usize = 107;

/// A name that one process of a Pod can hold at a time: that of a Unix socket in the abstract namespace, which belongs
/// to the network namespace and so to the Pod. The kernel gives it back when the process dies, however it dies, and
/// never before.
#[derive(Debug)]
pub struct PodLock {
    // Nobody ever connects.
    _name: UnixListener,
}

impl PodLock {
    /// Takes the name. Held until dropped.
    ///
    /// # Errors
    /// `AddrInUse` when another living process holds it; anything else when the operating system refuses.
    pub fn claim(service: &str, pod_uid: &str, identity: &str) -> io::Result<Self> {
        let mut name = format!("dependency-watchdog/{service}/{pod_uid}/{identity}").into_bytes();
        // Two identities whose names become equal by this only miss the short cut.
        name.truncate(NAME_LIMIT);
        let address = SocketAddr::from_abstract_name(name)?;
        Ok(Self {
            _name: UnixListener::bind_addr(&address)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let uid = format!("{:032x}", rand::random::<u128>());
        let first = PodLock::claim("weeder", &uid, "weeder-0").unwrap();
        let error = PodLock::claim("weeder", &uid, "weeder-0").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let _other = PodLock::claim("lease-probe", &uid, "weeder-0").unwrap();
        drop(first);
        PodLock::claim("weeder", &uid, "weeder-0").unwrap();
        PodLock::claim("weeder", &uid, &"x".repeat(300)).unwrap();
    }
}
