//! A seed as its programs report it, live: followed over their streams until it is dropped.

pub(crate) mod cell;
pub(crate) mod model;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use prost::Message;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use watchdog_client::consumer::follow;
use watchdog_client::follow::Update;
use watchdog_client::item::StreamItem;
use watchdog_client::wire::WatchResponse;
use watchdog_proto::probe::v1::WatchVerdictsResponse;
use watchdog_proto::scaling::v1::WatchScalingResponse;
use watchdog_proto::weeder::v1::WatchWeedersResponse;

use crate::connect::seeds::SeedConnection;
use crate::connect::{OpenChannel, ProgramDialer};
use crate::error::CommandResult;
use crate::program::Program;

use model::{ClockReading, SeedModel};

/// A seed or program that cannot be called is tried again after this time.
const RETRY: Duration = Duration::from_secs(2);

/// A seed that is followed until it is dropped.
pub(crate) struct FollowedSeed {
    pub(crate) state: Arc<SeedState>,
    _task: AbortOnDropHandle<()>,
}

/// The state of a seed. Those who show it look at it again and again, so a slow one costs nothing.
pub(crate) struct SeedState {
    model: Mutex<SeedModel>,
}

impl FollowedSeed {
    /// Follows a seed. One that cannot be connected to is tried again and again.
    pub(crate) fn start(mut seed: SeedConnection) -> Self {
        let model = Mutex::new(SeedModel::new(title(&seed)));
        let state = Arc::new(SeedState { model });
        let following = state.clone();
        let task = tokio::spawn(async move {
            loop {
                match seed.dialer().await {
                    Ok(dialer) => following.follow(&dialer).await,
                    Err(error) => following.update(|model, now| model.on_unconnected(error, now)),
                }
                tokio::time::sleep(RETRY).await;
            }
        });
        Self {
            state,
            _task: AbortOnDropHandle::new(task),
        }
    }
}

/// Names the seed on the page, by the options that chose it.
fn title(SeedConnection { connect, .. }: &SeedConnection) -> String {
    let chosen = [&connect.context, &connect.namespace].into_iter().flatten();
    let parts: Vec<&str> = chosen.chain(&connect.lease_probe).map(String::as_str).collect();
    parts.join(", ")
}

impl SeedState {
    /// Follows the programs, also one without replicas, until it is dropped.
    async fn follow(&self, dialer: &ProgramDialer) {
        let programs: Vec<Program> = dialer.installed().collect();
        self.update(|model, _| model.on_connected(&programs));
        let follow = programs.into_iter().map(async |program| {
            let mut dialer = dialer.clone();
            loop {
                if let Err(error) = self.follow_program(&dialer, program).await {
                    self.update(|model, now| model.on_lost(program, error, now));
                    dialer = dialer.renewed().await;
                }
                tokio::time::sleep(RETRY).await;
            }
        });
        join_all(follow).await;
    }

    /// Follows a program over one stream, to the first replica that answers. Its end is in the model.
    async fn follow_program(&self, dialer: &ProgramDialer, program: Program) -> CommandResult<()> {
        // The error of a call says more than that of a stream.
        dialer.summary(program).await?;
        let OpenChannel { replica, channel } = dialer.channel(program).await?;
        match program {
            Program::LeaseProbe => {
                self.follow_items::<WatchVerdictsResponse>(channel, SeedModel::on_verdicts)
                    .await;
            }
            Program::ScalingCoordinator => {
                self.follow_items::<WatchScalingResponse>(channel, SeedModel::on_scaling)
                    .await;
            }
            Program::Weeder => {
                self.follow_items::<WatchWeedersResponse>(channel, SeedModel::on_weeders)
                    .await;
            }
        }
        dialer.pass_over(program, &replica);
        Ok(())
    }

    /// Follows the items of a program until the stream is lost.
    async fn follow_items<M>(
        &self,
        channel: Channel,
        take: impl Fn(&mut SeedModel, Update<<M::Item as StreamItem>::Key, M::Item>, &ClockReading),
    ) where
        M: WatchResponse<Request: Default> + Message + Default,
    {
        let stop = CancellationToken::new();
        let on_update = |update| {
            if matches!(update, Update::Lost(_)) {
                stop.cancel();
            }
            self.update(|model, now| take(model, update, now));
        };
        follow::<M>(channel, M::Request::default(), &stop, on_update).await;
    }

    fn update(&self, change: impl FnOnce(&mut SeedModel, &ClockReading)) {
        change(&mut self.model(), &ClockReading::now());
    }

    pub(crate) fn model(&self) -> MutexGuard<'_, SeedModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
