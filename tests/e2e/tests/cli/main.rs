//! The programs as their users start them: command line, files, signals, logs and the gRPC API. What needs a seed has a
//! real one; the demo has its own in memory.

#![cfg(test)]

mod config_files;
mod demo;
mod drain;
mod grpcurl;
mod incident;
mod page;
mod watchdogctl;
