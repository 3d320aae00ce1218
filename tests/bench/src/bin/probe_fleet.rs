//! Measures lease-probe and scaling-coordinator from outside, on a simulated fleet of shoots.

use clap::{Parser, Subcommand};
use watchdog_bench::scenario::{healthy, hostile, incident, loss, outage, serve};

/// Measures lease-probe and scaling-coordinator on a simulated fleet of shoots. The programs stand where this one
/// does: build all of them with --release.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    scenario: ScenarioCommand,
}

#[derive(Debug, Subcommand)]
enum ScenarioCommand {
    /// The start of a fleet and its steady state: CPU, bytes, requests, memory, lag of the schedule
    Healthy(healthy::HealthyOptions),
    /// All nodes lost and recovered: from the crossing of the threshold to the verdict at a subscriber. Fails when it
    /// comes late, or nodes are listed more than once
    Loss(loss::LossOptions),
    /// All API servers fail for a while: which shoots get the verdict LEASES_EXPIRED, and when. Fails when a healthy
    /// one gets it or a lost one does not
    Outage(outage::OutageOptions),
    /// All nodes lost and recovered with scaling-coordinator, on a real kube-apiserver: until the dependants are at 0
    Incident(incident::IncidentOptions),
    /// Hostile API servers of every kind beside honest ones, with a memory limit. Fails when honest shoots are probed
    /// late, a loss among them is reported late, or lease-probe needs more memory
    Hostile,
    /// The fleet and a seed alone, for any prober; says how to point one at them
    Serve(serve::ServeOptions),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Args::parse().scenario {
        ScenarioCommand::Healthy(options) => healthy::run(options).await,
        ScenarioCommand::Loss(options) => loss::run(options).await,
        ScenarioCommand::Outage(options) => outage::run(options).await,
        ScenarioCommand::Incident(options) => incident::run(options).await,
        ScenarioCommand::Hostile => hostile::run().await,
        ScenarioCommand::Serve(options) => serve::run(options).await,
    }
}
