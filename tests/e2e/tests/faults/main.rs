//! One thing is wrong: a program is frozen, its machine gives it too little CPU, no socket or no disk, or what it talks
//! to is away. There is no false verdict and no write. The log, /readyz and a metric name the cause while it
//! lasts, and the same process protects shoots again once it is gone. Faults of the whole system are in
//! `watchdog_e2e::acceptance`.

#![cfg(test)]

mod cpu;
mod disk;
mod fleet;
mod frozen;
mod hostile;
mod seed_outage;
mod sockets;
