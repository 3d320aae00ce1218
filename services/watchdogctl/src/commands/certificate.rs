//! `certificate`

use std::path::Path;

use crate::args::ConnectArgs;
use crate::connect::ProgramDialer;
use crate::connect::tls::CallerCertificate;
use crate::error::CommandError;
use crate::render::text;

pub(crate) async fn run(connect: &ConnectArgs, folder: &Path) -> Result<String, CommandError> {
    let dialer = ProgramDialer::open(connect).await?;
    let own = dialer.certificate().map_err(Clone::clone)?;
    let own = own.ok_or_else(CallerCertificate::none_given)?;
    own.write(folder)?;
    let until = own.validity.map_or_else(String::new, |validity| {
        format!(", valid until {}", text::day_and_clock(validity.not_after))
    });
    Ok(format!(
        "ca.crt, tls.crt and tls.key are in {}{until}\n",
        folder.display()
    ))
}
