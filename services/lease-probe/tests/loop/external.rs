//! The external endpoint: what its answers, and their absence, make of a shoot whose nodes are connected.

use std::time::Duration;

use lease_probe::domain::outcome::{Outcome, ProbeFailure};

use crate::shoot::{LASTS, Millis, Observed, RENEW_INTERVAL, TestShoot, run};

const LIMIT: Duration = Duration::from_secs(5);

/// Probes three nodes that renew together until then, and an external endpoint with these answers.
fn probe(renew_until: Millis, answers: impl IntoIterator<Item = Result<(), ProbeFailure>>) -> Observed {
    let renewals = (0..=renew_until / RENEW_INTERVAL).map(|n| n * RENEW_INTERVAL);
    let shoot = TestShoot {
        leases_take: 0,
        nodes_take: 0,
        external: answers.into_iter().collect(),
        ..TestShoot::new(vec![renewals.collect(); 3])
    };
    // Without jitter, so that it is known which renewals come before which probe.
    run(shoot, "10s\nbackoffJitterFactor: 0")
}

/// Without the one that is pending before the first probe.
fn outcomes(observed: &Observed) -> Vec<&Outcome> {
    observed
        .reported
        .iter()
        .skip(1)
        .map(|(_, outcome)| outcome)
        .collect()
}

fn unanswered() -> Result<(), ProbeFailure> {
    Err(ProbeFailure::Timeout(LIMIT))
}

/// It is this process that waited for itself, or that has no file descriptor for a connection.
#[test]
fn an_endpoint_that_was_not_asked_is_not_unreachable() {
    for own in [
        ProbeFailure::QueueTimeout(LIMIT),
        ProbeFailure::LocalLimit("Too many open files".to_owned()),
    ] {
        let observed = probe(20_000, std::iter::repeat_n(Err(own), 60));
        let found = outcomes(&observed);
        assert!(!found.contains(&&Outcome::ExternalUnreachable), "{found:?}");
        assert_eq!(found.last(), Some(&&Outcome::LeasesExpired), "by its leases");
    }
}

/// Where many external endpoints fail at once, connection slots are scarce. That must not end a loss.
#[test]
fn a_loss_that_could_not_be_checked_is_inconclusive() {
    use Outcome::{ExternalUnreachable as Lost, Inconclusive};

    for own in [
        ProbeFailure::QueueTimeout(LIMIT),
        ProbeFailure::LocalLimit("Too many open files".to_owned()),
    ] {
        let answers = (0..60).map(|probe| match probe {
            0..5 => Ok(()),
            _ if probe % 2 == 1 => unanswered(),
            _ => Err(own.clone()),
        });
        let observed = probe(47_000, answers);
        let found = outcomes(&observed);
        let lost = found.iter().position(|outcome| **outcome == Lost).unwrap();
        assert_eq!(
            found[lost..lost + 4],
            [&Lost, &Inconclusive, &Lost, &Inconclusive],
            "{:?}",
            observed.reported
        );
    }
}

/// Only renewals do: else kube-controller-manager is scaled up for the seconds until the leases expire.
#[test]
fn an_endpoint_that_answers_again_ends_no_loss() {
    for fails in 1..=8 {
        let answers = [vec![Ok(()); 3], vec![unanswered(); fails], vec![Ok(()); 60]];
        let observed = probe(20_000, answers.into_iter().flatten());
        let mut found = outcomes(&observed).into_iter();
        assert!(found.any(Outcome::is_loss));
        let up = found.find(|outcome| **outcome == Outcome::Healthy);
        assert_eq!(up, None, "{fails}: {:?}", observed.reported);
    }
}

/// A server that answers 429 answers, and wants to be left alone. A loss meanwhile is seen in time.
#[test]
fn a_429_of_the_external_endpoint_pauses_only_that_endpoint() {
    let answers = [
        Err(ProbeFailure::Throttled(Some(Duration::from_secs(45)))),
        Err(ProbeFailure::Throttled(None)),
        Ok(()),
        Ok(()),
    ];
    let pauses = |at: Vec<Millis>| -> Vec<_> { at.windows(2).map(|pair| pair[1] - pair[0]).collect() };
    let observed = probe(LASTS, answers.clone());
    let mut since_renewed = outcomes(&observed)
        .into_iter()
        .skip_while(|outcome| **outcome == Outcome::Pending);
    let healthy = since_renewed.all(|outcome| *outcome == Outcome::Healthy);
    assert!(healthy, "{:?}", observed.reported);
    let of_endpoint = pauses(observed.external_asked);
    // The second is as long as the interval.
    assert!(
        (45_000..56_000).contains(&of_endpoint[0]) && (10_000..13_000).contains(&of_endpoint[1]),
        "{of_endpoint:?}"
    );
    let of_probes = pauses(observed.probes.iter().map(|(began, _)| *began).collect());
    assert!(of_probes.iter().all(|pause| *pause <= 11_000), "{of_probes:?}");

    let observed = probe(20_000, answers);
    let at = observed.first_loss().unwrap();
    assert!(at <= 20_000 + 33_000 + 500, "{:?}", observed.reported);
}

/// The leases expire 33 s after the last renewal, and no probe before that may still wait for the endpoint.
#[test]
fn an_endpoint_that_hangs_delays_no_loss() {
    for answered in 1..=5 {
        let observed = probe(20_000, vec![Ok(()); answered]);
        let at = observed.first_loss().unwrap();
        assert!(at <= 20_000 + 33_000 + 500, "{answered}: {:?}", observed.reported);
    }
}

/// No answer of it would end the loss.
#[test]
fn an_endpoint_is_not_asked_while_the_leases_show_a_loss() {
    let observed = probe(20_000, std::iter::repeat_n(Ok(()), 60));
    let lost = observed.first_loss().unwrap();
    let asked = &observed.external_asked;
    assert!(
        !asked.is_empty() && asked.iter().all(|at| *at < lost),
        "{asked:?}"
    );
}

/// The list after which the endpoint was asked is old by the time the endpoint had to answer.
#[test]
fn a_lease_that_is_renewed_while_the_endpoint_hangs_is_no_loss() {
    for back in (45_000..65_000).step_by(250) {
        let renewals = [0, RENEW_INTERVAL, 20_000].into_iter();
        let renewals = renewals.chain((0..3).map(|n| back + n * RENEW_INTERVAL));
        let shoot = TestShoot {
            leases_take: 0,
            nodes_take: 0,
            // Two are enough for the endpoint to be unreachable. The next requests hang.
            external: vec![Ok(()), Ok(()), Ok(()), unanswered(), unanswered(), unanswered()],
            ..TestShoot::new(vec![renewals.collect(); 3])
        };
        let observed = run(shoot, "10s\nbackoffJitterFactor: 0");
        let connected = back..back + 3 * RENEW_INTERVAL;
        let mut told = observed.reported.iter();
        let lost = told.find(|(at, outcome)| connected.contains(at) && outcome.is_loss());
        assert_eq!(lost, None, "back at {back}");
    }
}
