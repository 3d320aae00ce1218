//! Certificates that the programs issue for themselves, from a certificate authority that the replicas share. Rules
//! only: the Secret is read and written by `watchdog_kube::authority`.

mod authority;
mod validity;

pub use authority::{Authorities, Issued};
pub use validity::ValidityPeriod;
