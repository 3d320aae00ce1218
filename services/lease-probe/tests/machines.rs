//! The list of a shoot's machines on the seed, when the seed has too much to do.

#![cfg(test)]

use std::time::Duration;

use lease_probe::cluster::machines;
use lease_probe::domain::outcome::{Outcome, ProbeFailure};
use watchdog_sandbox::{ApiOptions, ApiServer, Fault, FaultAction};

const BOUND: Duration = Duration::from_secs(60);

async fn seed(server: &ApiServer) -> kube::Client {
    let file = kube::config::Kubeconfig::from_yaml(&server.kubeconfig("lease-probe")).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options)
        .await
        .unwrap();
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

#[tokio::test]
async fn a_429_of_the_seed_says_how_long_to_leave_it_alone() {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let seed = seed(&server).await;
    assert_eq!(machines::list(&seed, "shoot--a--b", BOUND).await, Ok(vec![]));

    server.inject(Fault::always(FaultAction::TooManyRequests { retry_after: 25 }).path("/apis/machine"));
    let throttled = machines::list(&seed, "shoot--a--b", BOUND).await.unwrap_err();
    assert_eq!(
        throttled,
        ProbeFailure::MachinesThrottled(Some(Duration::from_secs(25)))
    );
    assert_eq!(throttled.outcome(), Outcome::Inconclusive);
    assert!(
        throttled.to_string().contains("asks to wait for 25s"),
        "{throttled}"
    );

    server.clear_faults();
    server.inject(Fault::always(FaultAction::InternalError).path("/apis/machine"));
    let failed = machines::list(&seed, "shoot--a--b", BOUND).await.unwrap_err();
    assert!(
        matches!(&failed, ProbeFailure::Machines(why) if why.contains("500")),
        "{failed}"
    );
}

/// A connection that is dead is given up after 10 s. A seed that takes longer than that for an answer gets more time
/// with each try, or no loss could ever be reported.
#[tokio::test]
async fn a_list_that_fails_may_take_longer_the_next_time() {
    let server = ApiServer::start(ApiOptions::default()).await.unwrap();
    let seed = seed(&server).await;
    server.inject(Fault::always(FaultAction::Hang).path("/apis/machine"));
    let failed = machines::list(&seed, "shoot--a--b", Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(&failed, ProbeFailure::Machines(why) if why == "no answer within 50ms"),
        "{failed}"
    );

    let seconds = Duration::from_secs;
    let mut deadlines = vec![seconds(10)];
    for _ in 0..3 {
        deadlines.push(machines::next_deadline(
            *deadlines.last().unwrap(),
            true,
            seconds(30),
        ));
    }
    assert_eq!(deadlines, [10, 20, 30, 30].map(seconds));
    assert_eq!(
        machines::next_deadline(seconds(30), false, seconds(30)),
        seconds(10)
    );
    assert_eq!(
        machines::next_deadline(seconds(10), false, seconds(5)),
        seconds(5),
        "a short probeTimeout"
    );
}
