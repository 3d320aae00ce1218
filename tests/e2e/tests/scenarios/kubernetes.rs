//! Both tests. Each leaves its results in the page if `ACCEPTANCE_PAGE` names it.

use std::sync::Arc;

use crate::backend::Backend;
use crate::page::{self, Row};
use crate::{fault, runner, scenarios};

fn check(rows: &[Row]) {
    let failures: Vec<_> = rows.iter().filter(|row| row.failure.is_some()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios() {
    let backend = Arc::new(Backend::start().await.unwrap());
    let rows = runner::play_all(backend, scenarios::ALL).await;
    page::write_scenarios(&rows);
    check(&rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_faults() {
    let rows = fault::play_all().await.unwrap();
    page::write_faults(&rows);
    check(&rows);
}
