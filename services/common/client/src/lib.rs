//! Client of the gRPC APIs of the dependency watchdog, for programs that consume verdicts, the state of scaling or the
//! state of weeders.
//!
//! - [`grpc_client::Dialer`] makes channels: mutual TLS with a server name, or plaintext if no TLS is given.
//! - [`consumer::call`] sends any unary request with a deadline and a limit on messages; [`consumer::follow`] keeps a
//!   stream alive until it is cancelled.
//! - [`validity::Validity`] is the end of the validity of a verdict, by the local monotonic clock. No two wall
//!   clocks have to agree.
//!
//! ```no_run
//! use tokio_util::sync::CancellationToken;
//! use watchdog_client::consumer::follow;
//! use watchdog_client::follow::Update;
//! use watchdog_client::grpc_client::Dialer;
//! use watchdog_client::tls::{ClientTls, PemFiles};
//! use watchdog_client::validity::Validity;
//! use watchdog_proto::probe::v1::WatchVerdictsResponse;
//!
//! # async fn consume() -> Result<(), watchdog_client::setup_error::SetupError> {
//! let files = PemFiles {
//!     ca: "ca.crt".into(),
//!     cert: "tls.crt".into(),
//!     key: "tls.key".into(),
//! };
//! let dialer = Dialer {
//!     tls: Some(ClientTls::from_files(&files)?),
//!     server_name: "watchdog-lease-probe.garden.svc".to_owned(),
//! };
//! let channel = dialer.channel("localhost:9645")?;
//! let stop = CancellationToken::new();
//! follow::<WatchVerdictsResponse>(channel, Default::default(), &stop, |update| {
//!     if let Update::Upsert(shoot, received) = update {
//!         let validity = Validity::of_verdict(&received.value, received.sent_at);
//!         println!("{shoot}: {:?} until {:?}", received.value.outcome(), validity.valid_until);
//!     }
//! })
//! .await;
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! Files, addresses and names that cannot be used are a [`setup_error::SetupError`]. Unary calls return a
//! [`tonic::Status`], from which [`failure::Failure`] makes one line with one of a closed set of reasons.
//! A lost stream is no error of `follow`: it reports [`follow::Update::Lost`] and connects again.
//!
//! # Cancellation
//!
//! Every future may be dropped at any time. A dropped call is reset on the wire; a dropped `follow` closes its stream.

pub mod backoff;
pub mod consumer;
pub mod failure;
pub mod follow;
pub mod grpc_client;
pub mod item;
pub mod message;
pub mod open;
pub mod regular_file;
pub mod send_time;
pub mod setup_error;
pub mod tls;
pub mod validity;
pub mod wire;
