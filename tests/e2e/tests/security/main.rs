//! Certificates, permissions, limits, and kubeconfigs that are refused.

#![cfg(test)]

mod access;
mod kubeconfigs;
mod limits;
