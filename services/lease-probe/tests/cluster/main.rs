//! The requests of lease-probe to real sockets: connections to shoots, hostile answers, Machines, and the seed.

#![cfg(test)]

mod connections;
mod fixture;
mod hostile;
mod machines;
mod seed;
