//! Tasks of the process: critical ones whose end ends the process, and the order of the drain.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The name of a task, and how it ended.
type TaskResult = (&'static str, anyhow::Result<()>);

/// Spawns the critical tasks of the process and tells them when to stop. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    set: Arc<Mutex<JoinSet<TaskResult>>>,
    /// Those that outlive the drain.
    last: Arc<Mutex<JoinSet<TaskResult>>>,
    draining: CancellationToken,
}

impl Tasks {
    /// Spawns a task that must live until the drain: when it ends before, with or without an error or by a panic,
    /// the process ends with exit code 1. A watchdog of which a part silently died is the worst failure of its kind.
    pub fn critical(
        &self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.lock().spawn(async move { (name, task.await) });
    }

    /// The same for a task that goes on while the others drain, and is aborted when they have ended.
    pub fn spawn_critical(
        &self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.last.lock().spawn(async move { (name, task.await) });
    }

    /// Cancelled when the drain starts. Tasks finish what they are in and return.
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Waits until a critical task ends and says which and why. Never returns while all live.
    /// Safe to cancel: what has not been returned is not lost.
    pub async fn first_end(&self) -> anyhow::Error {
        let ended = poll_fn(|cx| {
            // Both are asked, so that both wake this up; an empty set is no news.
            let [critical, last] = [&self.set, &self.last].map(|set| match set.lock().poll_join_next(cx) {
                Poll::Ready(ended) => ended,
                Poll::Pending => None,
            });
            critical.or(last).map_or(Poll::Pending, Poll::Ready)
        });
        match ended.await {
            Ok((name, Ok(()))) => anyhow::anyhow!("task {name} ended unexpectedly"),
            Ok((name, Err(error))) => error.context(format!("task {name} failed")),
            Err(error) => anyhow::Error::new(error).context("a task panicked"),
        }
    }

    /// Starts the drain and waits for all tasks, at most `grace`; what is left then is aborted. Returns the names of
    /// those that ended with an error, and whether all ended in time.
    pub async fn drain(&self, grace: Duration) -> (Vec<String>, bool) {
        self.draining.cancel();
        let mut set = std::mem::take(&mut *self.set.lock());
        let mut failed = Vec::new();
        let all = tokio::time::timeout(grace, async {
            while let Some(ended) = set.join_next().await {
                match ended {
                    Ok((_, Ok(()))) => {}
                    Ok((name, Err(error))) => failed.push(format!("{name}: {error:#}")),
                    Err(error) => failed.push(error.to_string()),
                }
            }
        })
        .await;
        set.abort_all();
        self.last.lock().abort_all();
        (failed, all.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_critical_task_is_reported_by_name() {
        let tasks = Tasks::default();
        tasks.critical("watch", async { Ok(()) });
        assert_eq!(
            tasks.first_end().await.to_string(),
            "task watch ended unexpectedly"
        );
        tasks.critical("server", async { anyhow::bail!("port in use") });
        assert_eq!(
            format!("{:#}", tasks.first_end().await),
            "task server failed: port in use"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_to_the_end_outlives_the_others_and_holds_up_nobody() {
        let tasks = Tasks::default();
        let alive = Arc::new(());
        let (token, witness) = (tasks.draining(), alive.clone());
        tasks.spawn_critical("admin", async move {
            std::future::pending::<()>().await;
            drop(witness);
            Ok(())
        });
        let seen = alive.clone();
        tasks.critical("polite", async move {
            token.cancelled().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            anyhow::ensure!(Arc::strong_count(&seen) == 3, "admin is gone");
            Ok(())
        });
        assert_eq!(tasks.drain(Duration::from_secs(1)).await, (vec![], true));
        let tasks = Tasks::default();
        tasks.critical("server", std::future::pending());
        tasks.spawn_critical("admin", async { anyhow::bail!("port in use") });
        assert_eq!(
            format!("{:#}", tasks.first_end().await),
            "task admin failed: port in use"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn drain_waits_for_tasks_but_not_for_ever() {
        let tasks = Tasks::default();
        let token = tasks.draining();
        tasks.critical("polite", async move {
            token.cancelled().await;
            Ok(())
        });
        assert_eq!(tasks.drain(Duration::from_secs(1)).await, (vec![], true));
        let tasks = Tasks::default();
        tasks.critical("stubborn", std::future::pending());
        assert_eq!(tasks.drain(Duration::from_secs(1)).await, (vec![], false));
    }
}
