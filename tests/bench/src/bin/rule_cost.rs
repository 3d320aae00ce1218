//! Counts the instructions of the pure rules with callgrind and compares them with a recorded baseline: a guard
//! against regressions that does not depend on how busy the machine is.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use watchdog_bench::rules::CASES;

/// Repetitions of the shorter and the longer run: what the difference costs is what the rule costs, without the start.
const REPETITIONS: [u32; 2] = [20, 120];

/// A rule may cost this many percent more. Hash seeds and the C library make counts differ by some.
const TOLERANCE: f64 = 5.0;

/// Counts the instructions of the pure rules and compares them with a baseline.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: RuleCommand,
}

#[derive(Debug, Subcommand)]
enum RuleCommand {
    /// Compares with the baseline; fails when a rule costs more than it did
    Check {
        /// The recorded counts
        baseline: PathBuf,
        /// Record what is counted now instead
        #[arg(long)]
        record: bool,
    },
    /// Runs one rule, for callgrind to count
    Run {
        /// Its number
        case: usize,
        /// How many times
        repetitions: u32,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        RuleCommand::Run { case, repetitions } => {
            let (_, prepare) = CASES.get(case).context("there is no such rule")?;
            let mut work = prepare();
            for _ in 0..repetitions {
                work();
            }
            Ok(())
        }
        RuleCommand::Check { baseline, record } => check(&baseline, record),
    }
}

fn check(file: &Path, record: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
    for (number, (name, _)) in CASES.iter().enumerate() {
        counted.insert(name, cost(number)?);
    }
    if record {
        std::fs::write(file, serde_json::to_string_pretty(&counted)? + "\n")?;
        writeln!(out, "recorded {} counts in {}", counted.len(), file.display())?;
        return Ok(());
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let baseline: BTreeMap<String, u64> = serde_json::from_str(&text)?;
    let mut worse = Vec::new();
    for (name, now) in &counted {
        let before = *baseline
            .get(*name)
            .with_context(|| format!("{name:?} is not in {}: record it with --record", file.display()))?;
        let percent = (*now as f64 / before as f64 - 1.0) * 100.0;
        writeln!(out, "{now:>10} instructions, {percent:+6.1} %  {name}")?;
        if percent > TOLERANCE {
            worse.push(*name);
        }
    }
    ensure!(
        worse.is_empty(),
        "more than {TOLERANCE} % above the baseline: {}. If that is meant, record it anew with --record and say why",
        worse.join("; ")
    );
    Ok(())
}

/// Instructions of one repetition.
fn cost(case: usize) -> anyhow::Result<u64> {
    let [few, many] = REPETITIONS;
    let instructions = instructions(case, many)?.saturating_sub(instructions(case, few)?);
    Ok(instructions / u64::from(many - few))
}

fn instructions(case: usize, repetitions: u32) -> anyhow::Result<u64> {
    let own = std::env::current_exe()?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(own)
        .args(["run", &case.to_string(), &repetitions.to_string()])
        .output()
        .context("run valgrind: is it installed (Debian package valgrind)?")?;
    let output = String::from_utf8_lossy(&run.stderr);
    if !run.status.success() {
        bail!("valgrind failed: {output}");
    }
    collected(&output).with_context(|| format!("valgrind names no count: {output}"))
}

fn collected(output: &str) -> Option<u64> {
    let line = output.lines().find_map(|line| line.split_once("Collected : "))?;
    line.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found() {
        let output =
            "==7== Callgrind, a call-graph generating cache profiler\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(output), Some(123_456));
        assert_eq!(collected("==7== nothing"), None);
    }
}
