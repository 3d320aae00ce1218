//! The objects that the watchdog reads and writes: a typed subset of Kubernetes, Gardener and
//! machine-controller-manager objects, the names that it shares with them, and its configuration files. No I/O, no
//! clock, no runtime.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`names`] | every annotation, label, condition, namespace and default, with its source |
//! | [`duration`] | `parse` and `format` for durations in Go's notation; `doubled` for pauses |
//! | [`cluster`] | [`cluster::Cluster`] with the subset of its Shoot that matters |
//! | [`eligibility`] | `may_start(&Cluster)` and `may_continue(&Cluster)`: which shoots are probed, and how |
//! | [`policy`] | the annotations by which people set how a shoot is treated |
//! | [`lease`], [`node`], [`machine`] | items of lists |
//! | [`secret`] | [`secret::KubeconfigSecret`]: a Secret, reduced to its kubeconfig |
//! | [`workload`] | [`workload::Workload`]: anything with a scale sub-resource |
//! | [`list`] | [`list::ItemList`], the envelope of all lists |
//! | [`protobuf`] | lists in Kubernetes' Protobuf encoding |
//! | [`subset`] | [`subset::Subset`]: the fields of an object that are read, each with its value or why it has none |
//! | [`trimmed_object`] | Pods, EndpointSlices and Endpoints, reduced to what the weeder reads |
//! | [`kubeconfig`] | `parse(&[u8])` to a [`kubeconfig::ShootAccess`] |
//! | [`prober`], [`weeder`] | `parse(&[u8])` to [`prober::ProberConfig`] and [`weeder::WeederConfig`] |
//! | [`selector`] | [`selector::Selector`]: label selectors of the weeder's configuration, of kube |
//! | [`text`] | text from outside, bounded and printable |
//! | [`config`] | [`config::ConfigErrors`]: all that is wrong in a file, with its places |
//!
//! Three rules hold throughout:
//!
//! - **One bad object hides no other.** Objects of a watch ([`cluster::Cluster`], [`workload::Workload`],
//!   [`secret::KubeconfigSecret`]) fail to deserialise on broken JSON only; what is wrong inside is the
//!   reason in a `Result`, and name, resourceVersion and deletionTimestamp stay readable. An item of a list
//!   that cannot be decoded is a [`list::Item::Malformed`] with its name. An answer that is no list at all is an error
//!   and never an empty list.
//! - **Only what is read is decoded.** Everything else is skipped without being stored; nothing needs trimming
//!   afterwards.
//! - **No secrets in errors.** Neither an error nor a `Debug` shows a credential; a malformed object is described by
//!   the path and the type of what is wrong.
//!
//! All decoders are plain functions over bytes and accept any bytes without a panic, within bounded memory and time.

mod bounded;
pub mod cluster;
pub mod config;
mod config_error;
pub mod duration;
pub mod eligibility;
pub mod kubeconfig;
pub mod lease;
pub mod list;
pub mod machine;
mod meta;
pub mod names;
pub mod node;
pub mod policy;
pub mod prober;
pub mod protobuf;
pub mod secret;
pub mod selector;
pub mod subset;
pub mod text;
pub mod trimmed_object;
pub mod unix_time;
pub mod weeder;
pub mod workload;
mod yaml;
