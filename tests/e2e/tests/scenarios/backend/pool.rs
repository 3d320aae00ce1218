//! API servers that scenarios borrow.

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use watchdog_test_support::real::KubeApiserver;

/// Running API servers, for one borrower each at a time.
pub(super) struct Pool {
    free: Mutex<Vec<Arc<KubeApiserver>>>,
    permits: Arc<Semaphore>,
    size: usize,
}

/// A borrowed API server; goes back when it is dropped.
pub(crate) struct PooledServer {
    pub(super) server: Arc<KubeApiserver>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

// === impl Pool ===

impl Pool {
    pub(super) fn new(servers: Vec<KubeApiserver>) -> Arc<Self> {
        let size = servers.len();
        Arc::new(Self {
            free: Mutex::new(servers.into_iter().map(Arc::new).collect()),
            permits: Arc::new(Semaphore::new(size)),
            size,
        })
    }

    /// Waits until this many are free. All at once: who has some and waits for more could wait for another who does.
    pub(super) async fn borrow(self: &Arc<Self>, count: usize) -> anyhow::Result<Vec<PooledServer>> {
        anyhow::ensure!(count <= self.size, "{count} API servers asked of {}", self.size);
        let all = u32::try_from(count)?;
        let mut permits = self.permits.clone().acquire_many_owned(all).await?;
        (0..count)
            .map(|_| {
                Ok(PooledServer {
                    server: self.free.lock().pop().context("a permit without a server")?,
                    pool: self.clone(),
                    _permit: permits.split(1).context("too few permits")?,
                })
            })
            .collect()
    }
}

impl Drop for PooledServer {
    fn drop(&mut self) {
        // Before the permit, which is dropped after this.
        self.pool.free.lock().push(self.server.clone());
    }
}
