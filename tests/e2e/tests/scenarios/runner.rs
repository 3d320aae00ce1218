//! Plays all scenarios, many at once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use tokio::time::timeout;

use crate::backend::Backend;
use crate::fixture::Fixture;
use crate::page::{Account, Row};

/// The source of a scenario: a file under `tests/e2e/scenarios`.
pub(crate) struct Scenario {
    /// Name of its file.
    pub(crate) file: &'static str,
    /// Its text; the comment at its head is what it is about.
    pub(crate) source: &'static str,
    pub(crate) play: fn(Arc<Fixture>) -> BoxFuture<'static, anyhow::Result<()>>,
}

/// Scenarios that hold several API servers, or hold them for long: on a bounded pool they begin.
const FIRST: [u8; 7] = [13, 8, 18, 19, 16, 17, 7];

/// Set to numbers, separated by commas, to play only these.
const ONLY: &str = "ACCEPTANCE_ONLY";

// === impl Scenario ===

impl Scenario {
    /// The number that its file name begins with.
    pub(crate) fn number(&self) -> u8 {
        let digits = self.file.split('_').next().unwrap_or_default();
        digits.parse().unwrap_or_default()
    }

    /// The first line of the comment at its head.
    pub(crate) fn title(&self) -> &'static str {
        self.source
            .trim_start_matches("//!")
            .lines()
            .next()
            .unwrap_or_default()
            .trim()
    }

    /// The begin of its line on the page.
    pub(crate) fn link(&self) -> String {
        let (number, title, file) = (self.number(), self.title(), self.file);
        format!("| {number} | [{title}](../../tests/e2e/scenarios/{file}) |")
    }

    fn is_wanted(&self) -> bool {
        match std::env::var(ONLY) {
            Ok(list) if !list.is_empty() => list
                .split(',')
                .any(|number| number.trim().parse() == Ok(self.number())),
            _ => true,
        }
    }
}

/// Plays them all and says how each went.
pub(crate) async fn play_all(backend: Arc<Backend>, scenarios: &[Scenario]) -> Vec<Row> {
    let mut order: Vec<_> = scenarios.iter().filter(|scenario| scenario.is_wanted()).collect();
    let place = |number: u8| {
        FIRST
            .iter()
            .position(|first| *first == number)
            .unwrap_or(FIRST.len())
    };
    order.sort_by_key(|scenario| place(scenario.number()));
    let played = order.into_iter().map(|scenario| async {
        let row = play(&backend, scenario).await;
        row.print();
        row
    });
    let mut rows = join_all(played).await;
    rows.sort_by_key(|row| row.number);
    rows
}

async fn play(backend: &Arc<Backend>, scenario: &Scenario) -> Row {
    let name = format!("s{:02}", scenario.number());
    let fixture = Arc::new(Fixture::new(backend.clone(), &name));
    let bound = backend.times().bound * 10;
    let played = AssertUnwindSafe((scenario.play)(fixture.clone())).catch_unwind();
    let failure = match timeout(bound, played).await {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(error))) => Some(format!("{error:#}")),
        Ok(Err(_)) => Some("it panicked".to_owned()),
        Err(_) => Some(format!("it took longer than {bound:?}")),
    };
    let (failure, account) = match failure {
        None => finish(&fixture).await,
        failure => (failure, None),
    };
    Row {
        number: scenario.number(),
        title: scenario.title(),
        seconds: fixture.elapsed().as_secs_f64(),
        failure,
        account,
    }
}

/// The broken rules, and the cost.
async fn finish(fixture: &Fixture) -> (Option<String>, Option<Account>) {
    let account = match fixture.account().await {
        Ok(account) => account,
        Err(error) => return (Some(format!("{error:#}")), None),
    };
    let wrong = fixture.violations(None);
    ((!wrong.is_empty()).then(|| wrong.join("\n   ")), account)
}
