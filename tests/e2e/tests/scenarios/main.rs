//! The field's scenarios, and faults of the whole system, on the sandbox and on real Kubernetes.

#![cfg(test)]

mod kubernetes;
mod page;
mod sandbox;
