//! weeder: deletes the crash-looping dependants of a service once that service is ready again.
//!
//! `domain` holds the rules, `controller` runs them, `cluster` talks to the seed, `grpc` serves the API, and only `app`
//! joins them.

pub mod app;
mod cluster;
pub mod config;
mod controller;
pub mod domain;
mod grpc;
mod metrics;

use std::collections::BTreeMap;

use self::cluster::{EndpointsObject, PodObject, SliceObject};
use self::domain::pods::CrashLoop;
use self::domain::readiness::Slice;
pub use self::grpc::service::WeederApi;

// The decoders of the objects of the seed, for the fuzz targets.

/// Labels of a pod, and its worst crash loop.
pub type PodFacts = (BTreeMap<String, String>, CrashLoop);

/// Reads an `EndpointSlice`; none if it has no name.
///
/// # Errors
/// When it is no JSON object.
pub fn read_slice(json: &[u8]) -> serde_json::Result<Option<Slice>> {
    serde_json::from_slice(json).map(SliceObject::into_slice)
}

/// Reads an Endpoints; none if it has no name.
///
/// # Errors
/// When it is no JSON object.
pub fn read_endpoints(json: &[u8]) -> serde_json::Result<Option<Slice>> {
    serde_json::from_slice(json).map(EndpointsObject::into_slice)
}

/// Reads a Pod; none if it has no name or UID, is in no crash loop, or is being deleted.
///
/// # Errors
/// When it is no JSON object.
pub fn read_pod(json: &[u8]) -> serde_json::Result<Option<PodFacts>> {
    let pod = serde_json::from_slice(json).map(PodObject::into_pod)?;
    Ok(pod.map(|pod| (pod.labels, pod.crash)))
}
