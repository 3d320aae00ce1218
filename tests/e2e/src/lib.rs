//! The demo: the programs as their users start them.
//!
//! Errors are `anyhow` throughout: the demo shows them to a person and stops, nobody matches on them.

#![allow(missing_docs, reason = "no API: only the demo and its test use it")]

pub mod demo;
