//! One thing is wrong: a program is frozen, its machine gives it too little CPU, no file descriptor, no disk or another
//! time, or what it talks to is away. There is no false verdict and no write. The log, /readyz and a metric name the
//! cause while it lasts, and the same process protects shoots again once it is gone. Faults of the whole system are in
//! the binary `scenarios`.

#![cfg(test)]

mod clock;
mod cpu;
mod disk;
mod file_descriptors;
mod fleet;
mod frozen;
mod hostile;
mod seed_outage;
