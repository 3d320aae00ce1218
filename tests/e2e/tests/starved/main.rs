//! A program is frozen, its clock is set, or its machine gives it too little: CPU, file descriptors, memory or disk.
//! There is no false verdict and no write. The log, /readyz and a metric name the cause while it lasts, and the same
//! process protects shoots again once it is gone.

#![cfg(test)]

mod clock;
mod cpu;
mod disk;
mod file_descriptors;
mod fleet;
mod frozen;
mod memory;
