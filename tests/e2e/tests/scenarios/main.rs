//! The acceptance suite: the field's scenarios (`tests/e2e/scenarios`), and the faults that it fears, played on real
//! kube-apiservers with the services started as their users start them.
//!
//! ```text
//!   runner ─ Fixture (one per scenario) ─ ShootUnderTest ─ RealShoot: API server, kubelets, machines
//!                    │                    ├─ FaultProxy: an API server's bad behaviours
//!                    │                    └─ twin: the same without the watchdog ─ Account
//!                    └─ Seed: the services, and the timeline of all that happens ─ invariants S1 to S6
//! ```

#![cfg(test)]

mod backend;
mod fault;
mod fixture;
mod kubernetes;
mod page;
mod runner;
mod seed;
mod shoot;
mod times;

#[path = "../../scenarios/mod.rs"]
mod scenarios;

/// `nodeLeaseFailureFraction`.
const THRESHOLD: f64 = 0.6;
