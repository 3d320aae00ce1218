//! `completion` and `man`

use std::path::Path;

use clap_complete::Shell;

use crate::args;
use crate::error::CommandError;
use crate::output::Output;

pub(crate) fn completion(shell: Shell, called_as: &Path, output: &Output) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(called_as), "watchdogctl", &mut script);
    output.print(&String::from_utf8_lossy(&script));
}

/// # Errors
/// When the page cannot be written: out of memory.
pub(crate) fn man(called_as: &Path, output: &Output) -> Result<(), CommandError> {
    let mut page = Vec::new();
    let written = clap_mangen::Man::new(args::command(called_as)).render(&mut page);
    written.map_err(|error| CommandError::usage(error.to_string(), "try again"))?;
    output.print(&String::from_utf8_lossy(&page));
    Ok(())
}
