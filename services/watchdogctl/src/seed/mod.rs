//! A seed as its programs report it, live: followed over their streams until it is dropped.

pub(crate) mod cell;
pub(crate) mod model;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use watchdog_client::consumer::CALL_TIMEOUT;
use watchdog_proto::probe::v1::WatchVerdictsRequest;
use watchdog_proto::scaling::v1::WatchScalingRequest;

use crate::args::ConnectArgs;
use crate::connect::{ProgramDialer, seed};
use crate::error::{CommandError, USAGE};
use crate::fetch;
use crate::pods;
use crate::program::Program;

use model::{ClockReading, SeedModel};

/// A sleep of this machine is looked for this often.
const TICK: Duration = Duration::from_millis(500);

/// A program without a stream here is asked again after this time, well within that for which its last answer counts.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A program that cannot be called is tried again after this time.
const RETRY: Duration = Duration::from_secs(2);

/// Seeds that are followed at the same time. Each holds some ten connections; a process may often open 1,024 files.
const MOST_SEEDS: usize = 64;

/// The parts of a seed that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FollowScope {
    /// The programs that can be called, for the page.
    Known,
    /// lease-probe and the coordinator in any case, and the Pods of the release, for `status`.
    Status,
}

/// A seed that is followed until it is dropped.
pub(crate) struct FollowedSeed {
    pub(crate) state: Arc<SeedState>,
    _task: AbortOnDropHandle<()>,
}

/// The state of a seed. Those who show it look at it again and again, so a slow one costs nothing.
pub(crate) struct SeedState {
    model: Mutex<SeedModel>,
    is_read: watch::Sender<bool>,
}

impl FollowedSeed {
    /// Follows the seeds that the options name. One of several that cannot be connected to is tried again and again.
    ///
    /// # Errors
    /// When the options cannot be used or name too many seeds, or when the only one cannot be connected to.
    pub(crate) async fn each(connect: &ConnectArgs, scope: FollowScope) -> Result<Vec<Self>, CommandError> {
        let mut seeds = Vec::new();
        let named = seed::each(connect)?;
        if named.len() > MOST_SEEDS {
            return Err(CommandError::usage(
                format!("{} seeds are too many to follow at once", named.len()),
                format!("name at most {MOST_SEEDS} with --contexts; status without --watch asks any number"),
            ));
        }
        for (name, options) in named {
            if connect.has_contexts() {
                seeds.push(Self::connecting(name, options, scope));
                continue;
            }
            let dialer = Box::pin(ProgramDialer::open(&options)).await?;
            for program in dialer.programs().filter(|_| scope == FollowScope::Known) {
                match dialer.channel(program).await {
                    // It will not become right by itself.
                    Err(error) if error.code == USAGE => return Err(error),
                    _ => {}
                }
            }
            seeds.push(Self::connected(title(&options), dialer, scope));
        }
        Ok(seeds)
    }

    /// Follows a seed that is connected already.
    pub(crate) fn connected(title: String, dialer: ProgramDialer, scope: FollowScope) -> Self {
        Self::spawn(title, |state| async move { state.follow(&dialer, scope).await })
    }

    /// Connects to a seed, again and again until that works, and follows it.
    fn connecting(title: String, connect: ConnectArgs, scope: FollowScope) -> Self {
        Self::spawn(title, |state| async move {
            loop {
                match ProgramDialer::open(&connect).await {
                    Ok(dialer) => state.follow(&dialer, scope).await,
                    Err(error) => state.update(|model, now| model.on_unconnected(error, now)),
                }
                tokio::time::sleep(RETRY).await;
            }
        })
    }

    fn spawn<F>(title: String, follow: impl FnOnce(Arc<SeedState>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let state = Arc::new(SeedState {
            model: Mutex::new(SeedModel::new(title)),
            is_read: watch::Sender::new(false),
        });
        Self {
            _task: AbortOnDropHandle::new(tokio::spawn(follow(state.clone()))),
            state,
        }
    }
}

/// Names the seed on the page, by the options that chose it.
fn title(connect: &ConnectArgs) -> String {
    let chosen = [&connect.context, &connect.namespace].into_iter().flatten();
    let parts: Vec<&str> = chosen.chain(&connect.lease_probe).map(String::as_str).collect();
    parts.join(", ")
}

impl SeedState {
    /// Follows until it is dropped.
    async fn follow(&self, dialer: &ProgramDialer, scope: FollowScope) {
        let is_needed = |program: &Program| scope == FollowScope::Status && *program != Program::Weeder;
        let mut programs = Program::ALL.to_vec();
        programs.retain(|program| is_needed(program) || dialer.programs().any(|known| known == *program));
        self.update(|model, _| model.on_connected(&programs));
        let follow = programs.into_iter().map(async |program| {
            loop {
                if let Err(error) = self.follow_program(dialer, program).await {
                    self.update(|model, now| model.on_lost(program, error, now));
                }
                tokio::time::sleep(RETRY).await;
            }
        });
        let tick = async {
            loop {
                self.update(|_, _| {});
                tokio::time::sleep(TICK).await;
            }
        };
        let pods = async {
            if scope == FollowScope::Known {
                return;
            }
            loop {
                let pods = dialer.pods().await;
                let faults = pods.map(|pods| pods::findings(&pods.unwrap_or_default(), Timestamp::now()));
                self.update(|model, _| model.pods = Some(faults));
                tokio::time::sleep(ASK_AGAIN).await;
            }
        };
        tokio::join!(futures::future::join_all(follow), tick, pods);
    }

    /// Follows a program, over any number of streams. Ends only if the program cannot be called at all.
    async fn follow_program(&self, dialer: &ProgramDialer, program: Program) -> Result<(), CommandError> {
        // The error of a call says more than that of a stream.
        let missing = fetch::missing_of(dialer, program).await?;
        let stop = CancellationToken::new();
        match program {
            Program::LeaseProbe => {
                let client = dialer.lease_probe().await?;
                let on_update = |update| self.update(|model, now| model.on_verdicts(update, now));
                let request = WatchVerdictsRequest::default();
                client.follow(request, &stop, on_update).await;
            }
            Program::ScalingCoordinator => {
                let client = dialer.coordinator().await?;
                let on_update = |update| self.update(|model, now| model.on_scaling(update, now));
                let request = WatchScalingRequest::default();
                client.follow(request, &stop, on_update).await;
            }
            // Nothing of its streams is shown, only whether it answers for the whole seed.
            Program::Weeder => {
                let mut missing = missing;
                loop {
                    self.update(|model, _| model.on_answer(program, missing));
                    tokio::time::sleep(ASK_AGAIN).await;
                    missing = fetch::missing_of(dialer, program).await?;
                }
            }
        }
        Ok(())
    }

    /// Waits until each program has reported or is known to be lost, and the Pods have been looked at. What has not
    /// answered in time is lost.
    pub(crate) async fn until_read(&self) {
        let mut is_read = self.is_read.subscribe();
        let read = is_read.wait_for(|is_read| *is_read);
        if tokio::time::timeout(CALL_TIMEOUT, read).await.is_err() {
            self.update(SeedModel::give_up);
        }
    }

    fn update(&self, change: impl FnOnce(&mut SeedModel, &ClockReading)) {
        let now = ClockReading::now();
        let mut model = self.model();
        model.on_time(&now);
        change(&mut model, &now);
        self.is_read.send_replace(model.is_read());
    }

    pub(crate) fn model(&self) -> MutexGuard<'_, SeedModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
