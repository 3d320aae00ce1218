//! A program is frozen, or its machine gives it too little: CPU, file descriptors, disk, a clock that nobody sets. There is no
//! false verdict and no write, the log, /readyz and a metric name the cause while it lasts, and the same process protects
//! shoots again once it is gone.

#![cfg(test)]

mod clock;
mod cpu;
mod disk;
mod file_descriptors;
mod fleet;
mod frozen;
