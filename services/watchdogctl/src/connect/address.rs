//! Programs at addresses.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};

use watchdog_client::grpc_client::ByteStream;

use crate::args::ConnectArgs;
use crate::error::{CommandError, CommandResult};
use crate::program::Program;

/// A name is resolved within this time.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Every IP address and port behind the addresses of a program.
pub(super) async fn resolved(args: &ConnectArgs, program: Program) -> CommandResult<Vec<String>> {
    let addresses = args.addresses(program);
    if addresses.is_empty() {
        return Err(CommandError::usage(
            format!("this command needs the address of {program}, which is not given"),
            format!(
                "add --{program} HOST:PORT, or leave out all addresses and let watchdogctl find the programs through \
                 the API server of the seed"
            ),
        ));
    }
    let mut found = BTreeSet::new();
    for address in addresses {
        let failed = |why: String| {
            CommandError::unreachable(
                format!("{program} at {address}: {why}"),
                format!("correct the host of --{program}"),
            )
        };
        let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, lookup_host(address)).await;
        let resolved = lookup.map_err(|_| failed("the name was not resolved within 5 s".to_owned()))?;
        found.extend(resolved.map_err(|error| failed(error.to_string()))?);
    }
    Ok(found.iter().map(ToString::to_string).collect())
}

/// A connection to one address.
pub(super) async fn connect(address: &str) -> io::Result<Box<dyn ByteStream>> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    Ok(Box::new(tcp))
}
