use proptest::prelude::*;

use super::*;
use crate::domain::fixtures::{at, config, slice};
use crate::domain::readiness::Endpoints;

/// A service that was ready or not since this second.
fn since(second: i64, ready: bool) -> Option<ServiceState> {
    Some(ServiceState {
        endpoints: Endpoints::of([ready]),
        since: at(second),
    })
}

/// The recovery that a list brings, where the service was `before`.
fn listed(before: Option<ServiceState>, slice: &Slice, now: i64) -> Option<Recovery> {
    Recovery::of(before, &[slice], true, &[], &config(), at(now))
}

fn ready(second: i64) -> Slice {
    slice("etcd", true, second, 7)
}

fn undated(second: i64) -> Slice {
    Slice {
        triggered: None,
        ..ready(second)
    }
}

fn unwritten(second: i64) -> Slice {
    Slice {
        write: None,
        ..ready(second)
    }
}

#[test]
fn of_a_service_found_ready_the_slices_say_when_the_service_recovered() {
    let of = |slice: Slice, now| listed(None, &slice, now);
    let recovery = of(ready(100), 400).unwrap();
    assert_eq!((recovery.at, recovery.ends_at), (at(100), at(400)));
    assert!(recovery.found_ready);
    assert_eq!(recovery.write.unwrap().version, 7);
    assert_eq!(of(ready(100), 401), None, "longer than watchDuration ago");
    assert_eq!(of(undated(100), 101), None, "since an unknown time");
    assert_eq!(of(unwritten(100), 101), None);
    assert_eq!(of(slice("etcd", false, 100, 7), 101), None);
}

#[test]
fn pods_are_compared_with_a_time_that_is_never_later_than_the_write_of_the_slice() {
    let of = |triggered: i64, written: i64| {
        let slice = Slice {
            triggered: Some(UnixTime(triggered)),
            ..ready(written)
        };
        listed(None, &slice, 200).unwrap()
    };
    // The clock of the node is ahead, or the API server has kept the time of an earlier write.
    let ahead = of(150_000_000, 100);
    let write = ahead.write.unwrap();
    assert_eq!((ahead.at, write.second, write.version), (at(150), at(100), 7));
    // Written later for another reason: revisions say nothing about that second.
    let later = of(90_500_000, 100);
    assert_eq!(later.at, UnixTime(90_500_000));
    let write = later.write.unwrap();
    assert_eq!((write.second, write.version), (at(90), 0));
    // Our own clock is behind.
    assert_eq!(listed(None, &ready(500), 200).unwrap().at, at(200));
}

/// Such as those of two address families.
#[test]
fn the_first_of_the_ready_slices_counts_and_one_without_a_date_hides_it() {
    let both = |before, in_list, slices: [Slice; 2]| {
        let [a, b] = &slices;
        Recovery::of(before, &[a, b], in_list, &[], &config(), at(200))
    };
    let listed = |slices| both(None, true, slices);
    assert_eq!(listed([ready(150), ready(120)]).unwrap().at, at(120));
    assert_eq!(listed([ready(150), undated(120)]), None);
    let broken = || slice("etcd", false, 190, 9);
    assert_eq!(listed([broken(), ready(120)]).unwrap().at, at(120));
    assert_eq!(listed([broken(), broken()]), None);
    let write = |slices| both(since(50, false), false, slices).unwrap().write;
    assert_eq!(write([ready(150), ready(120)]).unwrap().second, at(120));
    assert_eq!(write([broken(), ready(120)]).unwrap().second, at(120));
    assert_eq!(write([ready(150), unwritten(120)]), None);
}

#[test]
fn what_is_seen_as_it_happens_is_dated_by_our_clock() {
    let watched = |before, slice: Slice| Recovery::of(before, &[&slice], false, &[], &config(), at(900));
    let recovery = watched(since(50, false), undated(100)).unwrap();
    assert_eq!((recovery.at, recovery.ends_at), (at(900), at(1_200)));
    assert_eq!(recovery.write.unwrap().second, at(100));
    assert!(!recovery.found_ready);
    assert!(
        watched(None, undated(100)).is_some(),
        "created ready while we watch"
    );
    assert_eq!(watched(since(50, true), ready(100)), None, "it was ready");
    assert_eq!(watched(since(50, false), unwritten(100)).unwrap().write, None);
}

#[test]
fn a_list_in_between_is_dated_by_the_slices_if_they_can() {
    let of = |slice: Slice| listed(since(50, false), &slice, 900);
    assert_eq!(of(ready(100)), None, "it recovered long ago");
    assert_eq!(of(ready(800)).unwrap().at, at(800));
    assert_eq!(of(undated(100)).unwrap().at, at(900), "it was seen not ready");
    assert_eq!(of(ready(49)).unwrap().at, at(900), "and that was later");
}

proptest! {
    /// Weeders that may delete, of a service that becomes ready after each of these gaps and stays so for half of it.
    #[test]
    fn never_more_than_three_in_any_minute(gaps in prop::collection::vec(1_i64..40, 1..60)) {
        let (mut recent, mut now, mut active) = (Vec::new(), 1_000, Vec::new());
        for gap in gaps {
            now += gap;
            let recovery = Recovery::of(None, &[&ready(now)], false, &recent, &config(), at(now)).unwrap();
            prop_assert_eq!(recovery.is_held_back(&recent), recovery.deletes_from > at(now));
            if recovery.deletes_from <= at(now + gap / 2) {
                Recovery::note(&mut recent, recovery.deletes_from);
                active.push(recovery.deletes_from);
            }
            prop_assert!(recent.len() <= MAX_RECOVERIES);
        }
        for window in active.windows(4) {
            prop_assert!(window[3].since(window[0]) >= WINDOW, "{window:?}");
        }
    }
}
