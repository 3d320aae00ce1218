//! Flags as Go's `flag` package reads them. The Go program declares its flags with that package.

use std::ffi::OsString;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{Arg, Command};

/// A flag without effect that is a boolean, and so may be without a value.
const IGNORED_SWITCH: &str = "zap-devel";

/// Flags of the Go program that have no effect here, whatever their values are.
pub(crate) const IGNORED_FLAGS: [&str; 7] = [
    "concurrent-reconciles",
    "kube-api-burst",
    "kube-api-qps",
    "pprof-bind-addr",
    IGNORED_SWITCH,
    "zap-stacktrace-level",
    "zap-time-encoding",
];

/// One of [`IGNORED_FLAGS`].
pub(crate) fn ignored_flag(name: &'static str) -> Arg {
    let flag = Arg::new(name)
        .long(name)
        .value_name("VALUE")
        .help("A flag of the Go program; has no effect.");
    if name == IGNORED_SWITCH {
        flag.num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
    } else {
        flag
    }
}

pub(crate) fn parse_bool(text: &str) -> anyhow::Result<bool> {
    watchdog_api::workload::parse_bool(text)
        .context("must be 1, t, T, true, TRUE, True, 0, f, F, false, FALSE or False")
}

/// The command line with every flag in one form, `--name=value`. Go also takes one dash, and, unless the flag is a
/// boolean, the next argument as the value, even if that begins with a dash.
///
/// # Errors
/// When something is not a flag, or a value is missing. Go ignores everything after an argument that is not a flag.
pub(crate) fn in_one_form(
    command: &mut Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Vec<OsString>, clap::Error> {
    let mut args = args.into_iter();
    let mut all: Vec<OsString> = args.by_ref().take(2).collect();
    let Some(role) = all.get(1).and_then(|role| command.find_subcommand_mut(role)) else {
        all.extend(args);
        return Ok(all);
    };
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str() else {
            all.push(arg);
            continue;
        };
        let flag = text.strip_prefix("--").or_else(|| text.strip_prefix('-'));
        let Some(flag) = flag.filter(|flag| !flag.is_empty() && !flag.starts_with(['-', '='])) else {
            let why = format!(
                "{text:?} is not a flag: write a flag with its value as --name=value, even if it is a boolean"
            );
            return Err(role.error(ErrorKind::UnknownArgument, why));
        };
        let flag = if flag == "h" { "help" } else { flag };
        let mut joined = OsString::from(format!("--{flag}"));
        // With its value the flag has no such name.
        let known = role.get_arguments().find(|arg| arg.get_long() == Some(flag));
        if known.is_some_and(|arg| !arg.is_require_equals_set()) {
            let Some(value) = args.next() else {
                let why = format!("--{flag} is without a value: write --{flag}=VALUE");
                return Err(role.error(ErrorKind::InvalidValue, why));
            };
            joined.push("=");
            joined.push(value);
        }
        all.push(joined);
    }
    Ok(all)
}
