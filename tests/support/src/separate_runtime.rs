//! A runtime beside that of the test: what runs there ends at once, like a process that is killed.

use std::future::Future;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

/// Killed when dropped.
#[derive(Debug)]
pub struct SeparateRuntime(Mutex<Option<Runtime>>);

// === impl SeparateRuntime ===

impl SeparateRuntime {
    /// Starts it on these threads.
    pub fn start(mut threads: Builder) -> anyhow::Result<Self> {
        let runtime = threads.enable_all().build()?;
        Ok(Self(Mutex::new(Some(runtime))))
    }

    /// Runs this there to its end; tasks that it spawns go on.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let task = self.0.lock().as_ref().map(|runtime| runtime.spawn(work));
        task.context("the runtime was killed")?.await?
    }

    /// Ends everything there.
    pub fn kill(&self) {
        if let Some(runtime) = self.0.lock().take() {
            // A runtime that is dropped waits for its tasks, which an async test must not.
            runtime.shutdown_background();
        }
    }
}

impl Drop for SeparateRuntime {
    fn drop(&mut self) {
        self.kill();
    }
}
