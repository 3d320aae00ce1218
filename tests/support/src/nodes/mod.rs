//! The nodes of a shoot: kubelets that can be cut off, and the machines behind them. All write through an API server,
//! in memory or real, as those of a real shoot do.

mod fleet;
mod kubelet;
mod machines;

pub use fleet::{Cut, RunningKubelets};
pub use kubelet::{Kubelet, LEASE_NAMESPACE};
pub use machines::{MachineTimes, Machines};
