//! The field's scenarios, on the sandbox and on real Kubernetes, and every way in which a probe can end.

#![cfg(test)]

mod end_of_shoot;
mod kubernetes;
mod outcomes;
mod page;
mod sandbox;
mod skew;
