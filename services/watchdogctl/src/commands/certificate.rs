//! `certificate`

use std::path::Path;

use crate::args::ConnectArgs;
use crate::connect::{server_name, tls};
use crate::error::CommandError;
use crate::program::Program;

pub(crate) async fn run(
    connect: &ConnectArgs,
    folder: &Path,
    dns_names: &[String],
) -> Result<String, CommandError> {
    let names = if dns_names.is_empty() {
        Program::ALL.map(|program| server_name(connect, program)).to_vec()
    } else {
        dns_names.to_vec()
    };
    tls::write(connect, folder, &names).await?;
    Ok(format!(
        "ca.crt, tls.crt and tls.key are in {}, valid for 24 h, for {}\n",
        folder.display(),
        names.join(", ")
    ))
}
