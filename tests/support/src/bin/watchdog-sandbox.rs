//! The sandbox as a program of its own.

use clap::Parser;
use watchdog_test_support::simulation::program::{self, Args};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    program::run(Args::parse()).await
}
