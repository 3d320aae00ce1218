//! Certificates, permissions, limits, and kubeconfigs that are refused.

#![cfg(test)]

mod access;
mod authority;
mod kubeconfigs;
mod limits;
