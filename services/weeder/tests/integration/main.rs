//! The whole weeder against a seed in memory, and its decoders with hostile text.

#![cfg(test)]
#![allow(unreachable_pub, reason = "shared by the modules of this test")]

mod api;
mod faults;
mod harm;
mod hostile;
#[path = "../../../common/api/tests/fixtures/hostile_documents.rs"]
mod hostile_documents;
mod leadership;
mod observe;
mod seed;
mod weeding;
