//! One thing is wrong: a part of the watchdog or of the seed is missing, or away. Faults of the whole system are in
//! `watchdog_e2e::acceptance`.

#![cfg(test)]

mod missing_parts;
mod seed_outage;
