//! The sandbox as a program of its own.

use clap::Parser;
use tracing_subscriber::EnvFilter;
use watchdog_sandbox::cli::{self, Args};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    cli::run(args).await
}
