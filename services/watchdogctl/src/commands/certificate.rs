//! `certificate`

use std::path::Path;

use serde_json::json;

use super::WrittenAnswer;
use crate::connect::ProgramDialer;
use crate::connect::tls::CallerCertificate;
use crate::error::CommandResult;
use crate::render::{Frame, text};

pub(crate) fn write(dialer: &ProgramDialer, folder: &Path, frame: &Frame) -> CommandResult<WrittenAnswer> {
    let own = dialer.certificate().map_err(Clone::clone)?;
    let own = own.ok_or_else(CallerCertificate::none_given)?;
    own.write(folder)?;
    // The end of its validity, if that can be read.
    let not_after = own.validity.map(|validity| validity.not_after);
    let until = not_after.map(|end| format!(", valid until {}", text::day_and_clock(end)));
    let (place, until) = (folder.display(), until.unwrap_or_default());
    let shown = format!("ca.crt, tls.crt and tls.key are in {place}{until}\n");
    let value = json!({"folder": folder, "notAfter": not_after});
    WrittenAnswer::of(frame, shown, value)
}
