//! One of the services of a seed: killed and started again, it stays the same to its callers.

use std::ffi::OsString;
use std::sync::Arc;

use parking_lot::RwLock;
use tonic::transport::Channel;

use crate::wait::BOUND;
use crate::watchdog::{Service, Setup};

/// Whatever process plays the part of a service now.
#[derive(Debug)]
pub struct RestartableService {
    current: RwLock<Arc<Service>>,
}

// === impl RestartableService ===

impl RestartableService {
    /// Around a process.
    #[must_use]
    pub fn new(service: Service) -> Arc<Self> {
        Arc::new(Self {
            current: RwLock::new(Arc::new(service)),
        })
    }

    /// The process.
    #[must_use]
    pub fn get(&self) -> Arc<Service> {
        self.current.read().clone()
    }

    /// A channel to it.
    ///
    /// # Errors
    /// When its address cannot be used.
    pub fn channel(&self, setup: &Setup) -> anyhow::Result<Channel> {
        setup.channel(&self.get())
    }

    /// Kills it (SIGKILL).
    ///
    /// # Errors
    /// When it does not go away.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.get().process.kill_9().await.map(drop)
    }

    /// Starts it again, with the same command line.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(&self) -> anyhow::Result<()> {
        let service = self.get().again().await?;
        *self.current.write() = Arc::new(service);
        Ok(())
    }

    /// Stops it in order and starts it with more variables in its environment.
    ///
    /// # Errors
    /// When it does not stop or come up.
    pub async fn restart_with(&self, variables: &[(&str, OsString)]) -> anyhow::Result<()> {
        let old = self.get();
        old.process.stop(BOUND).await?;
        let mut command = old.command().clone();
        for (name, value) in variables {
            command = command.env(*name, value);
        }
        let service = Service::start(command, old.process.scratch()).await?;
        service.wait_ready().await?;
        *self.current.write() = Arc::new(service);
        Ok(())
    }
}
