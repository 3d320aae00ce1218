//! The command line that all services share.

use std::net::SocketAddr;

use clap::Parser;
use watchdog_runtime::args::{CommonArgs, advertised};
use watchdog_runtime::cli::CommandLine;

/// A service that anybody on this host can reach.
pub const ON_FREE_PORTS: [&str; 3] = [
    "--insecure-plaintext",
    "--grpc-addr=127.0.0.1:0",
    "--admin-addr=127.0.0.1:0",
];

/// A service without options of its own.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

impl CommandLine for Args {
    type Config = CommonArgs;

    fn common(&self) -> &CommonArgs {
        &self.common
    }

    fn check(self) -> anyhow::Result<CommonArgs> {
        Ok(self.common)
    }
}

/// Parses a command line, the program's name and the configuration file left out.
pub fn parse(args: &[&str]) -> Result<CommonArgs, String> {
    let all = ["service", "--config-file=config.yaml"].iter().chain(args);
    let args = Args::try_parse_from(all).map_err(|error| error.to_string())?;
    Ok(args.common)
}

#[test]
fn plaintext_is_spoken_only_when_it_is_asked_for_by_name() {
    let tls = ["--tls-cert=a", "--tls-key=b", "--tls-client-ca=c"];
    let paths = parse(&tls).unwrap().tls_files().unwrap();
    let paths = [paths.cert, paths.key, paths.ca];
    assert_eq!(paths.map(|path| path.display().to_string()), ["a", "b", "c"]);
    assert!(parse(&["--insecure-plaintext"]).unwrap().tls_files().is_none());
    assert!(parse(&["--check-config"]).unwrap().check_config);

    let refused: [(&[&str], &str); 6] = [
        (&[], "--insecure-plaintext"),
        (&tls[..1], "--tls-key"),
        (&tls[..2], "--tls-client-ca"),
        (&tls[1..], "--tls-cert"),
        (
            &[tls[0], tls[1], tls[2], "--insecure-plaintext"],
            "cannot be used with",
        ),
        (
            &["--insecure-plaintext", "--tls-allowed-client=x.test"],
            "--tls-cert",
        ),
    ];
    for (args, why) in refused {
        let error = parse(args).unwrap_err();
        assert!(error.contains(why), "{args:?}: {error}");
    }
    let with = |more: &str| parse(&[tls[0], tls[1], tls[2], more]);
    let allowed = with("--tls-allowed-client=client.garden.svc")
        .unwrap()
        .tls_allowed_client;
    assert_eq!(allowed, ["client.garden.svc"]);
    assert!(
        with("--tls-allowed-client=*.svc")
            .unwrap_err()
            .contains("DNS name in full")
    );
}

#[test]
fn a_replica_has_a_name_and_an_address_for_the_others() {
    let args = |more: &str| parse(&["--insecure-plaintext", more]).unwrap();
    assert_eq!(args("--identity=mine").identity_or_random(), "mine");
    let mut nameless = args("--grpc-addr=0.0.0.0:0");
    nameless.identity = None;
    let (one, other) = (nameless.identity_or_random(), nameless.identity_or_random());
    assert_ne!(one, other, "two processes on one host");
    let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(one.chars().all(name), "{one} becomes the name of a Lease");

    let bound: SocketAddr = "192.0.2.1:9645".parse().unwrap();
    assert_eq!(advertised(bound), bound);
    let everywhere: SocketAddr = "[::]:9645".parse().unwrap();
    for all in [everywhere, "0.0.0.0:9645".parse().unwrap()] {
        let address = advertised(all);
        assert!(
            address.port() == 9645 && !address.ip().is_unspecified(),
            "{address}"
        );
    }
}

#[test]
fn the_services_of_the_watchdog_are_known_by_their_names() {
    let tls = [
        "--tls-cert=a",
        "--tls-key=b",
        "--tls-client-ca=c",
        "--namespace=leases",
    ];
    let own = |more: &[&str]| parse(&[&tls[..], more].concat()).unwrap().own_server_names();
    let of_the_chart = [
        "watchdog-lease-probe.leases.svc",
        "watchdog-scaling-coordinator.leases.svc",
        "watchdog-weeder.leases.svc",
    ];
    assert_eq!(own(&[]), of_the_chart);
    // The release is in another namespace than the Leases, and has another name.
    let named = own(&["--tls-peer-server-name=wd-lease-probe.garden.svc"]);
    let of_the_release = [
        "wd-lease-probe.garden.svc",
        "wd-scaling-coordinator.garden.svc",
        "wd-weeder.garden.svc",
    ];
    assert_eq!(named, of_the_release);
    assert_eq!(own(&["--tls-peer-server-name=localhost"]), ["localhost"; 3]);
    let observer = |peer: &str| {
        let authority = [
            "--tls-authority=a",
            "--tls-observer=b",
            "--namespace=leases",
            peer,
        ];
        parse(&authority).unwrap().observer_name()
    };
    for (peer, name) in [
        ("--log-level=info", "watchdog-observer.leases.svc"),
        (
            "--tls-peer-server-name=wd-weeder.garden.svc",
            "wd-observer.garden.svc",
        ),
        ("--tls-peer-server-name=localhost", "watchdog-observer.leases.svc"),
    ] {
        assert_eq!(observer(peer).as_deref(), Some(name));
    }
    assert_eq!(parse(&tls).unwrap().observer_name(), None);
    assert!(
        parse(&["--insecure-plaintext", "--admin-tls"])
            .unwrap_err()
            .contains("--tls-cert")
    );
}
