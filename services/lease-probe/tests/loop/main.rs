//! The life of a probe under a paused clock, against shoots that answer when and what a test says.

#![cfg(test)]

mod external;
mod shoot;
mod timeliness;
