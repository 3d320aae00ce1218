//! The life of a probe under a paused clock, against shoots that a test scripts.

#![cfg(test)]

mod external;
mod memory;
mod shoot;
mod timeliness;
