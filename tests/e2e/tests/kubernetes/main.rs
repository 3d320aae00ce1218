//! Real Kubernetes: what the sandbox and the simulation rest on, the drop-in image with the rights of gardenlet, and
//! the properties of the coordinator and of the weeder that need a real API server to be tested.

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

mod controller_manager;
mod coordinator;
mod drop_in;
mod full_etcd;
mod lease_lists;
mod scripted_nodes;
mod weeder;

/// The namespace of the only shoot of a test.
const SHOOT: &str = "shoot--real--one";
