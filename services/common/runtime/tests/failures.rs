//! A process of which a part fails.

#![cfg(test)]

use std::process::ExitCode;

use clap::Parser;
use tonic::service::RoutesBuilder;
use watchdog_runtime::args::CommonArgs;
use watchdog_runtime::grpc_server::Api;
use watchdog_runtime::process::run;
use watchdog_runtime::service_builder::ServiceBuilder;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

/// It neither goes on without it nor waits endlessly for what is left.
#[test]
fn a_part_that_ends_ends_the_process() {
    let common = Args::parse_from([
        "service",
        "--config-file=config.yaml",
        "--insecure-plaintext",
        "--grpc-addr=127.0.0.1:0",
        "--admin-addr=127.0.0.1:0",
        "--log-format=text",
    ])
    .common;
    let args = common.clone();
    let code = run(&common, |process| async move {
        let base = ServiceBuilder::bind(args, process).await?;
        let draining = base.draining.clone();
        base.tasks
            .critical("watch", async { anyhow::bail!("the watch ended") });
        base.tasks.critical("polite", async move {
            draining.cancelled().await;
            anyhow::bail!("it could not say goodbye")
        });
        let api = Api {
            routes: RoutesBuilder::default(),
            service_names: &[],
            descriptors: &[],
        };
        base.serve(api, vec![])
    });
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    // The exporter of the process is there already: reports come before anything is built.
    let never = |_| async { panic!("there is one process in a process") };
    assert_eq!(
        format!("{:?}", run(&common, never)),
        format!("{:?}", ExitCode::from(2))
    );
}
