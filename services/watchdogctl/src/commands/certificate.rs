//! `certificate`

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use super::CommandAnswer;
use crate::connect::ProgramDialer;
use crate::connect::tls::CallerCertificate;
use crate::error::CommandError;
use crate::render::{Frame, text};

/// The certificate that was written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WrittenCertificate {
    folder: PathBuf,
    /// The end of its validity, if that can be read.
    not_after: Option<Timestamp>,
}

pub(crate) fn write(dialer: &ProgramDialer, folder: &Path) -> Result<WrittenCertificate, CommandError> {
    let own = dialer.certificate().map_err(Clone::clone)?;
    let own = own.ok_or_else(CallerCertificate::none_given)?;
    own.write(folder)?;
    Ok(WrittenCertificate {
        folder: folder.to_owned(),
        not_after: own.validity.map(|validity| validity.not_after),
    })
}

impl CommandAnswer for WrittenCertificate {
    fn text(&self, _: &Frame) -> String {
        let until = self.not_after.map(text::day_and_clock);
        let until = until.map_or_else(String::new, |until| format!(", valid until {until}"));
        format!(
            "ca.crt, tls.crt and tls.key are in {}{until}\n",
            self.folder.display()
        )
    }
}
