//! The memory that an API server can make lease-probe use.

use crate::shoot::{LASTS, TestShoot, run};

/// They are remembered, because absence is no evidence, and a hostile API server could make that any number of leases.
#[test]
fn leases_that_the_last_list_does_not_have_count_as_kept() {
    let shoot = TestShoot {
        renames_leases: true,
        ..TestShoot::new(vec![(0..LASTS).step_by(10_000).collect(); 200])
    };
    let observed = run(shoot, "10s");
    assert!(
        observed.failures.contains("too_many_leases"),
        "{:?}",
        observed.failures
    );
}
