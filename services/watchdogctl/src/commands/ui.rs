//! `ui`: a page about the seed, served on loopback.

mod cell;
mod model;
mod server;
mod shoot_view;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::{Message, Name};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use watchdog_api::text;
use watchdog_client::follow::{Received, Update};
use watchdog_client::message::Completeness;
use watchdog_proto::probe::v1::WatchVerdictsRequest;
use watchdog_proto::scaling::v1::WatchScalingRequest;

use crate::args::{ConnectArgs, UiArgs};
use crate::connect::ProgramDialer;
use crate::error::{CommandError, USAGE};
use crate::fetch::{self, printable};
use crate::output::Output;
use crate::program::Program;

use model::{ClockReading, SeedModel};

/// Verdicts and reports that have become stale are looked for this often.
const TICK: Duration = Duration::from_millis(500);

/// A program without a stream here is asked again after this time, well within that for which its last answer counts.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A program that cannot be called is tried again after this time.
const RETRY: Duration = Duration::from_secs(2);

pub(crate) async fn run(
    connect: &ConnectArgs,
    args: &UiArgs,
    output: &Output,
) -> Result<ExitCode, CommandError> {
    let dialer = ProgramDialer::open(connect).await?;
    let (page, _tasks) = SeedPage::follow(&dialer, title(connect)).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.map_err(|error| {
        let what = format!("127.0.0.1:{}: {error}", args.port);
        CommandError::usage(what, "choose another --port, or leave it out")
    })?;
    let served = server::PageServer::new(page, &listener)?;
    output.print(&format!(
        "{}\nOnly programs on this machine reach the page, and only with this address. Press Ctrl-C to end it.\n",
        served.url
    ));
    tokio::select! {
        () = served.run(listener) => Ok(ExitCode::SUCCESS),
        // The usual way to end it.
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
    }
}

/// Names the seed on the page, by the options that chose it.
fn title(connect: &ConnectArgs) -> String {
    let chosen = [&connect.context, &connect.namespace].into_iter().flatten();
    let parts: Vec<&str> = chosen.chain(&connect.lease_probe).map(String::as_str).collect();
    parts.join(", ")
}

/// The state that pages show, and what wakes their streams.
struct SeedPage {
    model: Mutex<SeedModel>,
    /// Wakes the streams to pages. Each looks by itself what is new to it, so a slow one costs nothing.
    changed: watch::Sender<()>,
}

impl SeedPage {
    fn new(title: String, followed: &[Program]) -> Arc<Self> {
        Arc::new(Self {
            model: Mutex::new(SeedModel::new(title, followed)),
            changed: watch::Sender::new(()),
        })
    }

    /// A page about the programs that can be called, and the tasks that keep it up to date.
    ///
    /// # Errors
    /// When the options cannot be used.
    async fn follow(
        dialer: &ProgramDialer,
        title: String,
    ) -> Result<(Arc<Self>, Vec<AbortOnDropHandle<()>>), CommandError> {
        let followed: Vec<Program> = dialer.programs().collect();
        let this = Self::new(title, &followed);
        let ticking = this.clone();
        let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                ticking.update(SeedModel::tick);
                tokio::time::sleep(TICK).await;
            }
        }))];
        for program in followed {
            match dialer.channel(program).await {
                // It will not become right by itself.
                Err(error) if error.code == USAGE => return Err(error),
                _ => {}
            }
            let (page, dialer) = (this.clone(), dialer.clone());
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                loop {
                    if let Err(error) = page.follow_program(&dialer, program).await {
                        page.update(|model, now| model.on_unreachable(program, error.to_string(), now));
                    }
                    tokio::time::sleep(RETRY).await;
                }
            })));
        }
        Ok((this, tasks))
    }

    /// Follows a program, over any number of streams. Ends only if the program cannot be called at all.
    async fn follow_program(&self, dialer: &ProgramDialer, program: Program) -> Result<(), CommandError> {
        let stop = CancellationToken::new();
        match program {
            Program::LeaseProbe => {
                let on_update = |update| {
                    self.update(|model, now| model.on_verdicts(printable_update(update), now));
                };
                let request = WatchVerdictsRequest::default();
                dialer
                    .lease_probe()
                    .await?
                    .follow(request, &stop, on_update)
                    .await;
            }
            Program::ScalingCoordinator => {
                let on_update = |update| {
                    self.update(|model, now| model.on_scaling(printable_update(update), now));
                };
                let request = WatchScalingRequest::default();
                dialer
                    .coordinator()
                    .await?
                    .follow(request, &stop, on_update)
                    .await;
            }
            // Nothing of its streams is on the page, only whether it answers for the whole seed.
            Program::Weeder => loop {
                let missing = fetch::missing_of(dialer, program).await?;
                self.update(|model, _| model.on_answer(program, missing));
                tokio::time::sleep(ASK_AGAIN).await;
            },
        }
        Ok(())
    }

    fn update(&self, change: impl FnOnce(&mut SeedModel, &ClockReading)) {
        change(&mut self.model(), &ClockReading::now());
        self.changed.send_replace(());
    }

    fn model(&self) -> MutexGuard<'_, SeedModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The update with all its texts printable, names of shoots and replicas included. A value that the API does not know
/// is left out.
fn printable_update<V: Message + Name + Default>(update: Update<String, V>) -> Update<String, V> {
    let whole = |completeness: Completeness| {
        let replicas = completeness.missing_replicas.iter();
        Completeness {
            missing_replicas: replicas.map(|replica| text::printable(replica)).collect(),
            ..completeness
        }
    };
    let value = |received: Received<V>| {
        let (sent_at, set_at) = (received.sent_at, received.set_at);
        let value = printable::message(received.value).unwrap_or_default();
        Received {
            value,
            sent_at,
            set_at,
        }
    };
    match update {
        Update::Snapshot(items, completeness) => {
            let items = items.into_iter();
            let items = items.map(|(key, received)| (text::printable(&key), value(received)));
            Update::Snapshot(items.collect(), whole(completeness))
        }
        Update::Upsert(key, received) => Update::Upsert(text::printable(&key), value(received)),
        Update::Removed(key) => Update::Removed(text::printable(&key)),
        Update::Completeness(completeness) => Update::Completeness(whole(completeness)),
        Update::Skipped(_) | Update::Lost(_) => update,
    }
}

#[cfg(test)]
mod tests;
