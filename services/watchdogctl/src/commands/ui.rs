//! `ui`: a page about the seed, or about several, served on loopback.

mod server;
pub(crate) mod view;

use std::net::Ipv4Addr;

use tokio::net::TcpListener;

use crate::args::{ConnectArgs, UiArgs};
use crate::error::CommandError;
use crate::output::Output;
use crate::seed::{FollowScope, FollowedSeed};

pub(crate) async fn run(connect: &ConnectArgs, args: &UiArgs, output: &Output) -> Result<(), CommandError> {
    let seeds = FollowedSeed::each(connect, FollowScope::Known).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.map_err(|error| {
        let what = format!("127.0.0.1:{}: {error}", args.port);
        CommandError::usage(what, "choose another --port, or leave it out")
    })?;
    let served = server::PageServer::new(seeds, &listener)?;
    output.print(&format!(
        "{}\nOnly programs on this machine reach the page, and only with this address. Press Ctrl-C to end it.\n",
        served.url
    ));
    tokio::select! {
        () = served.run(listener) => Ok(()),
        // The usual way to end it.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

#[cfg(test)]
mod tests;
