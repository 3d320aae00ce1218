//! The acceptance suite: the field's scenarios (`tests/e2e/scenarios`), and the faults that it fears, played on real
//! kube-apiservers with the services started as their users start them.
//!
//! ```text
//!   runner ─ Fixture (one per scenario) ─ Shoot ─ ShootSite: API server, kubelets, machines
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

use watchdog_test_support::fixtures::{CA, KCM, MCM};

/// Project of all shoots of the suite.
const PROJECT: &str = "accept";

/// The dependants, with their replicas: of machine-controller-manager two, so that a lost count shows.
const COUNTS: [(&str, i32); 3] = [(KCM, 1), (MCM, 2), (CA, 1)];

/// `nodeLeaseFailureFraction`.
const THRESHOLD: f64 = 0.6;
