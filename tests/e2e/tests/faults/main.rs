//! One thing is wrong: bad input, or a server that is away. Faults of the whole system are in `watchdog_e2e::acceptance`.

#![cfg(test)]

mod bad_input;
mod seed_outage;
