//! Measures lease-probe and scaling-coordinator from outside, on a simulated fleet of shoots.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use serde::Serialize;
use watchdog_bench::fleet::process;
use watchdog_bench::print;
use watchdog_bench::scenario::{healthy, hostile, incident, loss, outage, serve};

/// Measures lease-probe and scaling-coordinator on a simulated fleet of shoots. The programs stand where this one
/// does: build all of them with --release.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    scenario: ScenarioCommand,
    /// Appends the figures to this file, one line of JSON per measurement
    #[arg(long, global = true)]
    json: Option<PathBuf>,
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
    /// The simulated shoots, which the others start as a process of its own
    #[command(hide = true)]
    Fleet(process::FleetProcessOptions),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.scenario {
        ScenarioCommand::Healthy(options) => record(&healthy::run(options).await?, args.json),
        ScenarioCommand::Loss(options) => {
            let outcomes = loss::run(options).await?;
            record(&outcomes, args.json)?;
            outcomes.check()
        }
        ScenarioCommand::Outage(options) => {
            let outcomes = outage::run(options).await?;
            record(&outcomes, args.json)?;
            outcomes.check()
        }
        ScenarioCommand::Hostile => {
            let outcomes = hostile::run().await?;
            record(&outcomes, args.json)?;
            outcomes.check()
        }
        ScenarioCommand::Incident(options) => record(&incident::run(options).await?, args.json),
        ScenarioCommand::Serve(options) => serve::run(options).await,
        ScenarioCommand::Fleet(options) => process::run(options).await,
    }
}

fn record(outcomes: &impl Serialize, file: Option<PathBuf>) -> anyhow::Result<()> {
    print(outcomes)?;
    let Some(file) = file else {
        return Ok(());
    };
    let mut value = serde_json::to_value(outcomes)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("date".into(), jiff::Timestamp::now().to_string().into());
    }
    let mut out = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .with_context(|| format!("open {}", file.display()))?;
    writeln!(out, "{value}")?;
    Ok(())
}
