//! The limit of open files. Some file descriptors below the hard limit are in reserve: the soft limit keeps everything
//! else from taking them.

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// File descriptors in reserve: twice as many as the admin endpoint has connections. Another thread may take one in the
/// microseconds in which the limit is raised, and keeps it until it closes it. That cannot be prevented, because the
/// limit is that of the process. It needs a process without any other file descriptor, in which the admin endpoint
/// accepts a connection while another thread opens something, and each time costs one at most for each thread.
const RESERVED_FILE_DESCRIPTORS: u64 = 128;

/// At most this part of all is in reserve.
const RESERVE_DIVISOR: u64 = 8;

/// One at a time raises the limit and lowers it again.
static RAISED_LIMIT_LOCK: Mutex<()> = Mutex::new(());

/// Raises the limit of open files as far as the process may, less the reserve. Container runtimes give 1024 and allow
/// more; a lease-probe has a connection for each shoot.
pub(crate) fn raise_limit() {
    let before = getrlimit(Resource::Nofile);
    let limit = without_reserve(&before);
    if limit == before {
        return;
    }
    let (from, to, maximum) = (before.current, limit.current, limit.maximum);
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => tracing::info!(from, to, maximum, "limit of open files set"),
        Err(error) => tracing::warn!(%error, limit = from, "cannot set the limit of open files"),
    }
}

fn without_reserve(limit: &Rlimit) -> Rlimit {
    let maximum = limit.maximum;
    Rlimit {
        current: maximum.map(|all| all - RESERVED_FILE_DESCRIPTORS.min(all / RESERVE_DIVISOR)),
        maximum,
    }
}

/// Lets `open` take a file descriptor of the reserve. It does not wait: the limit of all threads is raised meanwhile. A
/// number above the limit that is closed goes back to the reserve.
pub(crate) fn with_reserve<T>(open: impl FnOnce() -> T) -> T {
    let _raised = RAISED_LIMIT_LOCK.lock();
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        ..before
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot open the reserve of file descriptors");
        return open();
    }
    let opened = open();
    let lowered = if getrlimit(Resource::Nofile) == raised {
        setrlimit(Resource::Nofile, before)
    } else {
        // Somebody else has set it meanwhile.
        Ok(())
    };
    if let Err(error) = lowered {
        tracing::warn!(%error, "cannot close the reserve of file descriptors");
    }
    opened
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_stays_below_the_hard_limit() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let set = |maximum| without_reserve(&limit(Some(64), maximum)).current;
        assert_eq!(set(Some(1_048_576)), Some(1_048_448));
        assert_eq!(set(Some(1024)), Some(896));
        assert_eq!(set(Some(256)), Some(224));
        assert_eq!(set(None), None);
    }

    #[test]
    fn the_limit_is_raised() {
        raise_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit, without_reserve(&limit));
    }
}
