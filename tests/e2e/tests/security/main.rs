//! Certificates, permissions, limits for callers and scrapers, and kubeconfigs that are refused.

#![cfg(test)]

mod access;
mod admin_port;
mod authority;
mod kubeconfigs;
mod limits;
mod memory;
mod strangers;
mod subscriber;
