//! How the scenarios went, on disk from one program to the next.

use std::path::PathBuf;

use anyhow::Context;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::accounting::Account;

/// One scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub number: u8,
    pub title: String,
    /// How long it took, its preparation included.
    pub seconds: f64,
    /// The error, if any.
    pub failure: Option<String>,
    /// The cost of the outage, if there was one and a twin.
    pub account: Option<Account>,
}

/// All scenarios, or all faults.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// When they were played.
    pub at: Timestamp,
    /// In the order of their numbers.
    pub rows: Vec<Row>,
}

// === impl Results ===

impl Results {
    /// Played now.
    #[must_use]
    pub fn new(rows: Vec<Row>) -> Self {
        Self {
            at: Timestamp::now(),
            rows,
        }
    }

    /// Everything that went wrong.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let failed = self.rows.iter().filter_map(|row| {
            let why = row.failure.as_ref()?;
            Some(format!("{} {}: {why}", row.number, row.title))
        });
        failed.collect()
    }

    /// Writes them for the report.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, name: &str) -> anyhow::Result<()> {
        let path = path(name)?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// The last results written.
    ///
    /// # Errors
    /// When nothing was.
    pub fn load(name: &str) -> anyhow::Result<Self> {
        let path = path(name)?;
        let text = std::fs::read(&path).with_context(|| {
            format!(
                "read {}: run the tests that write it, `make acceptance`",
                path.display()
            )
        })?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// In the folder `acceptance` of the target folder that the running program was built into.
fn path(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file())
        .with_context(|| format!("{} is in no target folder", program.display()))?;
    Ok(target.join("acceptance").join(format!("{name}.json")))
}
