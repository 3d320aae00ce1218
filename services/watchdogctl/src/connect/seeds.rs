//! The seeds that the options name.

use std::collections::BTreeSet;

use super::ProgramDialer;
use super::seed::unusable;
use crate::args::ConnectArgs;
use crate::error::CommandError;

/// Seeds that are followed at the same time. Each holds some ten connections; a process may often open 1,024 files.
const MOST_FOLLOWED: usize = 64;

/// A seed, connected to or not yet.
pub(crate) struct SeedConnection {
    /// Its context; empty if the options name one seed.
    pub(crate) name: String,
    pub(crate) connect: ConnectArgs,
    pub(crate) dialer: Option<ProgramDialer>,
}

impl SeedConnection {
    /// The seeds that the options name, each once.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub(crate) fn each(connect: &ConnectArgs) -> Result<Vec<Self>, CommandError> {
        let of = |name, connect| Self {
            name,
            connect,
            dialer: None,
        };
        if !connect.has_contexts() {
            return Ok(vec![of(String::new(), connect.clone())]);
        }
        let mut known = BTreeSet::new();
        let mut contexts = contexts(connect)?;
        contexts.retain(|context| known.insert(context.clone()));
        let of_context = |context: String| {
            let name = watchdog_api::text::printable(&context);
            let connect = ConnectArgs {
                context: Some(context),
                contexts: Vec::new(),
                all_contexts: false,
                ..connect.clone()
            };
            of(name, connect)
        };
        Ok(contexts.into_iter().map(of_context).collect())
    }

    /// The seeds of a command that does not end by itself. A single one is connected to now.
    ///
    /// # Errors
    /// When there are too many, the kubeconfig cannot be used, or the only one cannot be connected to.
    pub(crate) async fn each_to_follow(connect: &ConnectArgs) -> Result<Vec<Self>, CommandError> {
        let mut seeds = Self::each(connect)?;
        if seeds.len() > MOST_FOLLOWED {
            return Err(CommandError::usage(
                format!("{} seeds are too many to follow at once", seeds.len()),
                format!(
                    "name at most {MOST_FOLLOWED} with --contexts; status without --watch asks any number"
                ),
            ));
        }
        if let [only] = seeds.as_mut_slice()
            && !connect.has_contexts()
        {
            only.dialer().await?;
        }
        Ok(seeds)
    }

    /// Connects to it, unless that is done.
    ///
    /// # Errors
    /// When it cannot be connected to.
    pub(crate) async fn dialer(&mut self) -> Result<ProgramDialer, CommandError> {
        let dialer = match self.dialer.take() {
            Some(dialer) => dialer,
            None => Box::pin(ProgramDialer::open(&self.connect)).await?,
        };
        Ok(self.dialer.insert(dialer).clone())
    }
}

/// The contexts to ask: those that are named, or all.
///
/// # Errors
/// When no kubeconfig can be used, or it has no context.
fn contexts(args: &ConnectArgs) -> Result<Vec<String>, CommandError> {
    if !args.all_contexts {
        return Ok(args.contexts.clone());
    }
    let variable = |name: &str| std::env::var(name).ok();
    let contexts = watchdog_kube::seed::contexts(args.kubeconfig.as_deref(), &variable);
    let contexts = contexts.map_err(|error| unusable(&error))?;
    if contexts.is_empty() {
        return Err(CommandError::usage(
            "the kubeconfig has no context",
            "set --kubeconfig",
        ));
    }
    Ok(contexts)
}
