//! Several replicas of one program.

#![cfg(test)]

mod coordinator;
mod frozen;
mod interrupted;
mod kubernetes;
mod probe;
mod restart;
mod rolling;
mod support;
mod weeder;
mod whole_seed;
