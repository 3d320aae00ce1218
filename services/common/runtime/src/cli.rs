//! From the command line to a configuration, or to an exit code.

use std::process::ExitCode;

use clap::Parser;

use crate::args::CommonArgs;
use crate::process::usage_error;

/// The command line of a service.
pub trait CommandLine: Parser {
    /// The parts that a service is built from.
    type Config;

    /// The options that all services share.
    fn common(&self) -> &CommonArgs;

    /// Checks everything, the configuration file included.
    ///
    /// # Errors
    /// All that is wrong, a line each.
    fn check(self) -> anyhow::Result<Self::Config>;
}

/// Reads the command line of the process and checks it.
///
/// # Errors
/// The exit code with which the process must end: 0 after --help, --version or a good --check-config, 2 when something
/// is wrong, after it was printed.
pub fn parse_or_exit<A: CommandLine>() -> Result<A::Config, ExitCode> {
    let args = A::try_parse().map_err(|error| usage_error(&error.into()))?;
    let only_check = args.common().check_config;
    let config = args.check().map_err(|error| usage_error(&error))?;
    if only_check {
        Err(ExitCode::SUCCESS)
    } else {
        Ok(config)
    }
}
