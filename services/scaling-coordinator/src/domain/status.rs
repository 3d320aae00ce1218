//! How far the flow of a shoot is: what is shown to people and streamed to consumers.

use tokio::time::Instant;
use watchdog_api::prober::ResourceRef;

/// How far a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowState {
    /// Nothing to do: there is no direction.
    Holding,
    /// Nothing to do: every resource is where the direction wants it.
    Settled,
    /// A level is being worked on.
    Running,
    /// A level has failed.
    Failed,
}

impl FlowState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Holding, Self::Settled, Self::Running, Self::Failed];

    /// As a label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Holding => "holding",
            Self::Settled => "settled",
            Self::Running => "running",
            Self::Failed => "failed",
        }
    }
}

/// The step of the flow for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Its level has not started.
    Pending,
    /// Its initial delay runs.
    Delayed,
    /// A write is being made, or waits for its turn.
    Writing,
    /// Waiting for what was written to take effect.
    Waiting,
    /// It is where the direction wants it.
    Reached,
    /// Optional and absent.
    Absent,
    /// It carries ignore-scaling.
    Ignored,
    /// The last try failed; the next one comes after a back-off.
    BackingOff,
    /// All tries failed, or no try can help.
    Failed,
}

/// One resource in the flow of a shoot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The resource.
    pub reference: ResourceRef,
    /// Its level in the direction that runs; 0 while holding.
    pub level: i32,
    /// The current step.
    pub step: Step,
    /// Wanted replicas as last seen.
    pub replicas: Option<i32>,
    /// Ready replicas as last seen.
    pub ready: Option<i32>,
    /// Replica count recorded for the restore.
    pub recorded: Option<i32>,
    /// True if the resource carries meltdown-protection-active.
    pub protected: bool,
    /// Replicas that the direction wants.
    pub target: Option<i32>,
    /// Tries made in this level so far.
    pub attempts: u32,
    /// One sentence for people.
    pub message: String,
}

/// How far the flow of a shoot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowStatus {
    /// How far.
    pub state: FlowState,
    /// The level that is being worked on or has failed.
    pub level: Option<i32>,
    /// Every configured resource, in configuration order.
    pub resources: Vec<Progress>,
    /// When a failed level is tried again; `None` also when only a change of a resource can help.
    pub retry_at: Option<Instant>,
}
