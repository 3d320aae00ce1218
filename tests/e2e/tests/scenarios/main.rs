//! The field's scenarios, and faults of the whole system, on real Kubernetes.

#![cfg(test)]

mod kubernetes;
mod page;
