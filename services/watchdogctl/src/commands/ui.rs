//! `ui`: a page about the seed, or about several, served on loopback.

mod server;
pub(crate) mod view;

use std::net::Ipv4Addr;

use serde_json::json;
use tokio::net::TcpListener;

use super::WrittenAnswer;
use crate::args::ConnectArgs;
use crate::connect::seeds::SeedConnection;
use crate::error::{CommandError, CommandResult};
use crate::output::Output;
use crate::render::Format;
use crate::seed::FollowedSeed;

pub(crate) async fn run(
    connect: &ConnectArgs,
    port: u16,
    format: Format,
    output: &Output,
) -> CommandResult<()> {
    let seeds = SeedConnection::each_to_follow(connect).await?.into_iter();
    let seeds = seeds.map(FollowedSeed::start).collect();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.map_err(|error| {
        let what = format!("127.0.0.1:{port}: {error}");
        CommandError::usage(what, "choose another --port, or leave it out")
    })?;
    let served = server::PageServer::new(seeds, &listener)?;
    let how =
        "Only programs on this machine reach the page, and only with this address. Press Ctrl-C to end it.";
    let text = format!("{}\n{how}\n", served.url);
    let page = WrittenAnswer::of(&output.frame(format), text, json!({"url": served.url}))?;
    output.print(&page.printed(format)?);
    tokio::select! {
        () = served.run(listener) => Ok(()),
        // The usual way to end it.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

#[cfg(test)]
mod tests;
