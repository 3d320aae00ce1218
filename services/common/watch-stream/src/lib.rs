//! The one way of streaming keyed state: snapshot, then deltas, conflated per key.
//!
//! [`server::StreamStore`] holds the latest value of every key. Writers never wait: they replace a value and raise the
//! revision. Each [`subscription::Subscription`] has a cursor; it reads whatever changed since, so a slow reader skips
//! intermediate values and memory is bounded by the number of keys. [`stream::serve`] turns a subscription into the
//! body of a streaming RPC, and [`follow::follow`] is the other end: it reconnects, notices dead streams, and estimates
//! when each message was *sent*, by the local clock, so that validity survives any skew between hosts.
//!
//! Every replica of a service answers for the whole seed (ADR 0004):
//!
//! ```text
//!   domain store ── encode ──> SeedView ── own ─────> SCOPE_REPLICA: other replicas, other services
//!                              ^       └──── whole ───> everybody else
//!   other lease-probes ─ merge ┘
//! ```

pub mod item;
pub mod metrics;
pub mod replicas;
pub mod seed_view;
pub mod server;
pub mod stream;
pub mod subscription;

pub use watchdog_client::{follow, message, wire};
