//! The seeds that the options name.

use std::collections::BTreeSet;

use watchdog_api::text::printable;

use super::ProgramDialer;
use super::seed::unusable;
use crate::args::ConnectArgs;
use crate::error::{CommandError, CommandResult};

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
    pub(crate) fn each(connect: &ConnectArgs) -> CommandResult<Vec<Self>> {
        let mut contexts = vec![connect.context.clone()];
        if connect.has_contexts() {
            let mut known = BTreeSet::new();
            let all = self::contexts(connect)?.into_iter();
            contexts = all
                .filter(|context| known.insert(context.clone()))
                .map(Some)
                .collect();
        }
        let seed = |context: Option<String>| Self {
            name: match &context {
                Some(context) if connect.has_contexts() => printable(context),
                _ => String::new(),
            },
            connect: ConnectArgs {
                context,
                contexts: Vec::new(),
                all_contexts: false,
                ..connect.clone()
            },
            dialer: None,
        };
        Ok(contexts.into_iter().map(seed).collect())
    }

    /// The seeds of a command that does not end by itself. A single one is connected to now.
    ///
    /// # Errors
    /// When there are too many, the kubeconfig cannot be used, or the only one cannot be connected to.
    pub(crate) async fn each_to_follow(connect: &ConnectArgs) -> CommandResult<Vec<Self>> {
        let mut seeds = Self::each(connect)?;
        if seeds.len() > MOST_FOLLOWED {
            let what = format!("{} seeds are too many to follow at once", seeds.len());
            let what_to_do = format!(
                "name at most {MOST_FOLLOWED} with --contexts; status without --watch asks any number"
            );
            return Err(CommandError::usage(what, what_to_do));
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
    pub(crate) async fn dialer(&mut self) -> CommandResult<ProgramDialer> {
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
fn contexts(args: &ConnectArgs) -> CommandResult<Vec<String>> {
    if !args.all_contexts {
        return Ok(args.contexts.clone());
    }
    let variable = |name: &str| std::env::var(name).ok();
    let contexts = watchdog_kube::seed::contexts(args.kubeconfig.as_deref(), &variable);
    let contexts = contexts.map_err(|error| unusable(&error))?;
    if contexts.is_empty() {
        let what = "the kubeconfig has no context";
        return Err(CommandError::usage(what, "set --kubeconfig"));
    }
    Ok(contexts)
}
