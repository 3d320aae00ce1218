//! Several replicas of the programs as they are deployed, on a real seed. Several coordinators with verdicts that the
//! test gives are in the binary `kubernetes`.

#![cfg(test)]

mod late;
mod rolling;
mod whole_seed;
