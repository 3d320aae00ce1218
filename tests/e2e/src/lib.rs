//! The acceptance suite and the demo: the programs as their users start them.
//!
//! Errors are `anyhow` throughout: a test or the demo shows them to a person and stops, nobody matches on them.

#![allow(missing_docs, reason = "no API: only tests use it")]

pub mod acceptance;
pub mod demo;
