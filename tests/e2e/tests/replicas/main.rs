//! Several replicas of the programs, on a seed in memory whose shoots have nodes. Several coordinators with verdicts
//! that the test gives are in the binary `kubernetes`.

#![cfg(test)]

mod late;
mod rolling;
mod whole_seed;
