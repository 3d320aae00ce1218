//! The programs as their users start them: command line, files, signals, logs and the gRPC API.

#![cfg(test)]

mod config_files;
mod demo;
mod drain;
mod grpcurl;
mod page;
mod probe_cost;
mod standalone;
mod watchdogctl;
