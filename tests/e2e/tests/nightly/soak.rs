//! Random incidents over two hundred shoots. `SOAK_SECONDS` says for how long; a minute otherwise.

use std::time::Duration;

use watchdog_e2e::acceptance::soak;

/// In `make test`.
const SECONDS: u64 = 60;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_grows() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let measures = soak::run(Duration::from_secs(seconds)).await.unwrap();
    eprintln!("{}", measures.join("\n"));
}
