//! The life of a probe under a paused clock, against shoots that a test scripts.

#![cfg(test)]

mod external;
mod shoot;
mod timeliness;
