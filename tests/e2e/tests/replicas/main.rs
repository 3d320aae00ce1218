//! Several replicas of one program.

#![cfg(test)]

mod coordinator;
mod frozen;
mod interrupted;
mod kubernetes;
mod late;
mod rolling;
mod support;
mod whole_seed;
