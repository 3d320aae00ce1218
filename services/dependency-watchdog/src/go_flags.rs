//! Flags as Go's `flag` package reads them. The Go program declares its flags with that package.

use std::ffi::OsString;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};

/// Flags of the Go program that have no meaning here. A value that it would refuse is refused.
pub(crate) const IGNORED_FLAGS: [(&str, GoType); 7] = [
    ("concurrent-reconciles", GoType::Integer),
    ("kube-api-burst", GoType::Integer),
    ("kube-api-qps", GoType::Number),
    ("pprof-bind-addr", GoType::Text),
    ("zap-devel", GoType::Bool),
    (
        "zap-stacktrace-level",
        GoType::OneOf(&["debug", "info", "warn", "error", "panic"]),
    ),
    (
        "zap-time-encoding",
        GoType::OneOf(&["epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"]),
    ),
];

/// The type of a flag.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GoType {
    Bool,
    Integer,
    Number,
    Text,
    OneOf(&'static [&'static str]),
}

impl GoType {
    /// A flag of this type that has no effect.
    pub(crate) fn arg(self, name: &'static str) -> Arg {
        let arg = Arg::new(name)
            .long(name)
            .value_name("VALUE")
            .help("A flag of the Go program; has no effect.");
        match self {
            Self::Bool => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(parse_bool),
            Self::Integer => arg
                .value_parser(|text: &str| integer(text).context("must be an integer, such as 100 or 0x64")),
            Self::Number => arg.value_parser(number),
            Self::Text => arg,
            Self::OneOf(values) => arg
                .value_parser(PossibleValuesParser::new(values))
                .ignore_case(true),
        }
    }
}

/// Reads an integer as `strconv.ParseInt` does with base 0: the prefix says the base, and `_` may separate digits.
fn integer(text: &str) -> Option<i64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text).to_ascii_lowercase();
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2), ("0", 8)];
    let prefixed = prefixes
        .iter()
        .find_map(|(prefix, radix)| Some((unsigned.strip_prefix(prefix)?, *radix)));
    let (digits, radix) = match prefixed {
        Some((digits, radix)) if unsigned != "0" => (digits.strip_prefix('_').unwrap_or(digits), radix),
        _ => (&*unsigned, 10),
    };
    let is_separated = digits.split('_').all(|part| !part.is_empty());
    if !is_separated || digits.starts_with(['+', '-']) {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), radix).ok()
}

fn number(text: &str) -> anyhow::Result<f64> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.context("must be a decimal number, such as 20.0")
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

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn integers_have_the_bases_and_separators_of_go() {
        for (text, value) in [
            ("0", 0),
            ("-7", -7),
            ("+100", 100),
            ("1_000", 1000),
            ("0x4", 4),
            ("0X_fF", 255),
            ("-0b1_0", -2),
            ("0o17", 15),
            ("017", 15),
            ("0_7", 7),
            ("-0x8000000000000000", i64::MIN),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            "+-1",
            "--1",
            "0x",
            "0x-1",
            "0_",
            "_1",
            "1_",
            "1__0",
            "0x__1",
            "08",
            "0b2",
            "1.5",
            "1e3",
            "four",
            "0x8000000000000000",
            "9223372036854775808",
        ] {
            assert_eq!(integer(text), None, "{text}");
        }
    }
}
