//! Certificates, and the limits for callers, strangers and scrapers, on a real seed that all share one after the other.
//! Each has replicas of its own in a namespace of its own.

#![cfg(test)]

mod access;
mod admin_port;
mod authority;
mod limits;
mod memory;
mod strangers;
mod subscriber;

use watchdog_test_support::process::Command;
use watchdog_test_support::real::{FixtureOptions, REPLICAS, RealFixture, create_namespace};
use watchdog_test_support::{binaries, fixtures};

/// The command line of a lease-probe without certificates, whose Leases are in this namespace.
async fn lease_probe(fixture: &RealFixture, namespace: &str, name: &str) -> Command {
    let seed = fixture.seed.client();
    create_namespace(&seed, namespace).await.unwrap();
    let command = fixture.bare_command(binaries::LEASE_PROBE, name).unwrap();
    command.option("--namespace", namespace)
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_strangers_and_scrapers() {
    let users = [
        &access::USERS[..],
        &authority::USERS,
        &[admin_port::USER, limits::USER, memory::DROP_IN],
    ];
    let prober = fixtures::prober("probeInterval: 1s\ninitialDelay: 1s\nprobeTimeout: 5s", "1s");
    let options = FixtureOptions::new("security", &["one"])
        .users(&users.concat())
        .prober(&prober);
    let fixture = RealFixture::start(options).await.unwrap();
    access::callers_who_are_not_known_are_refused_and_both_sides_are_told_why(&fixture).await;
    authority::a_replica_without_a_certificate_takes_no_shoot_from_the_others(&fixture).await;
    admin_port::probes_are_answered_whatever_a_scraper_does(&fixture).await;
    limits::streams_messages_and_readers(&fixture).await;

    let (kind, name) = REPLICAS[0];
    let lease_probe = fixture.start_replica(kind, name).await.unwrap();
    strangers::the_log_does_not_repeat_what_strangers_send(&lease_probe).await;
    memory::bodies_at_the_admin_ports_take_less_than_64_mib(&fixture, &lease_probe).await;
    memory::one_caller_takes_less_than_64_mib(&fixture, &lease_probe).await;
}
