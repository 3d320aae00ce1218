//! Real Kubernetes: what the sandbox and the other tests rest on, and the whole watchdog on it.

#![cfg(test)]

// The model of the node lifecycle controller by which the simulation judges lease-probe.
#[path = "../../../../services/lease-probe/tests/simulation/node_lifecycle.rs"]
#[allow(dead_code, reason = "the simulation uses more of it")]
mod node_lifecycle;
#[path = "../../../../services/lease-probe/tests/simulation/node_lifecycle_input.rs"]
mod node_lifecycle_input;
#[path = "../../../../services/lease-probe/tests/simulation/random.rs"]
#[allow(dead_code, reason = "the simulation uses more of it")]
mod random;

mod conformance;
mod control_plane;
mod controller_manager;
mod drop_in;
mod lease_lists;
mod main_job;
mod scripted_nodes;
mod weeder;
