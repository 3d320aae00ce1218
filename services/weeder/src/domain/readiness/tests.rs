use proptest::prelude::*;

use super::*;

fn slice(conditions: &[bool], written: i64) -> Slice {
    let write = SliceWrite {
        second: UnixTime(written * 1_000_000),
        version: written.unsigned_abs(),
    };
    Slice {
        key: NamespacedName::new("shoot", "slice"),
        service: Some("etcd".into()),
        endpoints: Endpoints::of(conditions.iter().copied()),
        write: Some(write),
        triggered: Some(write.second),
    }
}

fn of(slices: &[Slice]) -> Option<ObservedService> {
    ObservedService::of(slices.iter())
}

#[test]
fn one_ready_endpoint_of_any_slice_is_enough() {
    assert_eq!(of(&[]), None, "without a slice it is not known");
    for (slices, ready, total) in [
        (&[&[][..]][..], 0, 0),
        (&[&[false]], 0, 1),
        (&[&[true, false, true]], 2, 3),
        // Dual stack, and one that is empty.
        (&[&[false], &[true]], 1, 2),
        (&[&[true], &[], &[false]], 1, 2),
    ] {
        let slices: Vec<_> = slices.iter().map(|conditions| slice(conditions, 1)).collect();
        let endpoints = of(&slices).unwrap().endpoints;
        assert_eq!(endpoints, Endpoints { ready, total });
        assert_eq!(endpoints.is_ready(), ready > 0);
    }
}

#[test]
fn it_is_ready_since_the_first_of_its_ready_slices_was_written() {
    let service = of(&[slice(&[true], 7), slice(&[true], 5), slice(&[false], 3)]).unwrap();
    assert_eq!(service.write.unwrap().version, 5);
    assert_eq!(service.last_change.unwrap().0, UnixTime(5_000_000));
    let undated = Slice {
        triggered: None,
        ..slice(&[true], 9)
    };
    assert_eq!(of(&[slice(&[true], 7), undated]).unwrap().last_change, None);
}

proptest! {
    #[test]
    fn the_order_of_slices_does_not_matter(
        (slices, shuffled) in prop::collection::vec((prop::collection::vec(any::<bool>(), 0..3), 0_i64..9), 0..6)
            .prop_map(|slices| slices.iter().map(|(all, written)| slice(all, *written)).collect::<Vec<_>>())
            .prop_flat_map(|slices| (Just(slices.clone()), Just(slices).prop_shuffle())),
    ) {
        prop_assert_eq!(of(&slices), of(&shuffled));
    }
}
