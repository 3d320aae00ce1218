//! `ui`: a page about the seed, or about several, served on loopback.

mod server;
pub(crate) mod view;

use std::net::Ipv4Addr;

use serde::Serialize;
use tokio::net::TcpListener;

use super::{CommandAnswer, WrittenAnswer};
use crate::args::{ConnectArgs, UiArgs};
use crate::connect::seeds::SeedConnection;
use crate::error::CommandError;
use crate::output::Output;
use crate::render::{Format, Frame};
use crate::seed::FollowedSeed;

/// The address of the page.
#[derive(Debug, Serialize)]
struct ServedPage {
    url: String,
}

pub(crate) async fn run(
    connect: &ConnectArgs,
    args: &UiArgs,
    format: Format,
    output: &Output,
) -> Result<(), CommandError> {
    let seeds = SeedConnection::each_to_follow(connect).await?.into_iter();
    let seeds: Result<Vec<_>, _> = seeds.map(FollowedSeed::start).collect();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.map_err(|error| {
        let what = format!("127.0.0.1:{}: {error}", args.port);
        CommandError::usage(what, "choose another --port, or leave it out")
    })?;
    let served = server::PageServer::new(seeds?, &listener)?;
    let page = ServedPage {
        url: served.url.clone(),
    };
    output.print(&WrittenAnswer::new(&page, &output.frame(format))?.printed(format)?);
    tokio::select! {
        () = served.run(listener) => Ok(()),
        // The usual way to end it.
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

impl CommandAnswer for ServedPage {
    fn text(&self, _: &Frame) -> String {
        let how = "Only programs on this machine reach the page, and only with this address. Press Ctrl-C to end it.";
        format!("{}\n{how}\n", self.url)
    }
}

#[cfg(test)]
mod tests;
