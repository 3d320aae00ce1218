//! `certificate`

use std::path::Path;

use crate::args::ConnectArgs;
use crate::connect::tls;
use crate::error::CommandError;
use crate::render::text;

pub(crate) async fn run(connect: &ConnectArgs, folder: &Path) -> Result<String, CommandError> {
    let validity = tls::write(connect, folder).await?;
    let until = validity.map_or_else(String::new, |validity| {
        format!(", valid until {}", text::day_and_clock(validity.not_after))
    });
    Ok(format!(
        "ca.crt, tls.crt and tls.key are in {}{until}\n",
        folder.display()
    ))
}
