//! The writes to the leader's Leases, over time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::{CLOCK_SPEED, LEADER_LEASE, Write};

/// How a replica let go of what it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseKind {
    Released,
    Expired,
}

/// The time between two changes of a Lease's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Term {
    lease: usize,
    number: usize,
}

/// A Lease from one write to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeaseRecord {
    /// When the write came in: others can only have seen it later.
    at: Timestamp,
    author: String,
    /// Empty where nobody holds it.
    holder: String,
    /// Seconds for which the holder wants it.
    duration: i64,
    /// Counts the changes of the holder.
    term: usize,
}

/// The Leases by which coordinators elect a leader: one, unless they are in different namespaces.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By path.
    numbers: BTreeMap<String, usize>,
    leases: Vec<Vec<LeaseRecord>>,
}

// === impl Claims ===

impl Claims {
    /// From writes in the order of their arrival.
    pub(super) fn read(writes: &[Write]) -> Self {
        let mut claims = Self::default();
        for write in writes.iter().filter(|write| write.applied) {
            claims.add(write);
        }
        claims
    }

    fn add(&mut self, write: &Write) {
        let (Some(path), Some(holder)) = (path_of(write), holder_of(write)) else {
            return;
        };
        let next = self.leases.len();
        let number = *self.numbers.entry(path).or_insert(next);
        if number == next {
            self.leases.push(Vec::new());
        }
        let Some(records) = self.leases.get_mut(number) else {
            return;
        };
        let term = records
            .last()
            .map_or(0, |last| last.term + usize::from(last.holder != holder));
        records.push(LeaseRecord {
            at: write.at,
            author: write.author.clone(),
            holder: holder.to_owned(),
            duration: duration_of(write),
            term,
        });
    }

    /// The last write of each Lease at a moment.
    fn last(&self, at: Timestamp) -> impl Iterator<Item = (usize, &LeaseRecord)> {
        let leases = self.leases.iter().enumerate();
        leases.filter_map(move |(number, records)| Some((number, until(records, at).last()?)))
    }

    /// The term in which a replica leads at a moment.
    pub(super) fn current(&self, replica: &str, at: Timestamp) -> Option<Term> {
        self.last(at)
            .find(|(_, record)| record.author == replica && !record.holder.is_empty())
            .map(|(lease, record)| Term {
                lease,
                number: record.term,
            })
    }

    /// True if a replica leads at a moment; says why not.
    pub(super) fn is_held(&self, replica: &str, at: Timestamp) -> Result<(), String> {
        let mut why = "nobody ever held it".to_owned();
        for (_, record) in self.last(at) {
            why = if record.author != replica {
                format!("{} wrote it at {}", record.author, record.at)
            } else if record.holder.is_empty() {
                format!("it was released at {}", record.at)
            } else if is_expired(record, at) {
                format!("it was last renewed at {}", record.at)
            } else {
                return Ok(());
            };
        }
        Err(why)
    }

    /// How `from`, who led in that term, let go, so that another may act at a moment; none when it did not.
    pub(super) fn let_go(&self, (from, term): (&str, Option<Term>), at: Timestamp) -> Option<ReleaseKind> {
        let term = term?;
        let records = until(self.leases.get(term.lease)?, at);
        let end = records.partition_point(|record| record.term <= term.number);
        let taken = |record: &LeaseRecord| record.author != from && !record.holder.is_empty();
        let next = (end..records.len()).find(|index| records.get(*index).is_some_and(taken))?;
        // Somebody else may have emptied or deleted it: that is no evidence that the one before has stopped.
        let of_from = |record: &&LeaseRecord| record.author == from;
        let last = records.get(..next)?.iter().rev().find(of_from)?;
        if last.holder.is_empty() {
            return Some(ReleaseKind::Released);
        }
        is_expired(last, records.get(next)?.at).then_some(ReleaseKind::Expired)
    }
}

fn until(records: &[LeaseRecord], at: Timestamp) -> &[LeaseRecord] {
    let end = records.partition_point(|record| record.at <= at);
    records.get(..end).unwrap_or_default()
}

fn is_expired(record: &LeaseRecord, at: Timestamp) -> bool {
    at.duration_since(record.at).as_secs_f64() * CLOCK_SPEED >= record.duration as f64
}

/// The path of the leader's Lease, where a write concerns it. The path of a create does not name the object.
fn path_of(write: &Write) -> Option<String> {
    let (namespace, name) = write.path.split_once("/leases")?;
    let name = match name.strip_prefix('/') {
        Some(name) => name,
        None => write.body.pointer("/metadata/name")?.as_str()?,
    };
    (name == LEADER_LEASE).then(|| format!("{namespace}/leases/{name}"))
}

/// Whom a write makes the holder, or nobody; none where it leaves the holder as it is.
fn holder_of(write: &Write) -> Option<&str> {
    let holder = write.body.pointer("/spec/holderIdentity").and_then(Value::as_str);
    match write.verb.as_str() {
        "patch" => holder,
        _ => Some(holder.unwrap_or_default()),
    }
}

fn duration_of(write: &Write) -> i64 {
    let seconds = write.body.pointer("/spec/leaseDurationSeconds");
    seconds.and_then(Value::as_i64).unwrap_or_default()
}
