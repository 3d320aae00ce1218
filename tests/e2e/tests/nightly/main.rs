//! Random incidents: briefly in `make test`, for minutes in `make nightly`.

#![cfg(test)]

mod chaos;
mod soak;
