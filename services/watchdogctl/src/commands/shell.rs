//! `completion` and `man`

use std::path::Path;

use clap_complete::Shell;

use crate::args;
use crate::error::{CommandError, CommandResult};

pub(crate) fn completion(shell: Shell, called_as: &Path) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(called_as), "watchdogctl", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// # Errors
/// When the page cannot be written: out of memory.
pub(crate) fn man(called_as: &Path) -> CommandResult<String> {
    let mut page = Vec::new();
    let written = clap_mangen::Man::new(args::command(called_as)).render(&mut page);
    written.map_err(|error| CommandError::usage(error.to_string(), "try again"))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
