//! The commands that the demo prints for those who go on by hand.

use watchdog_test_support::binaries;
use watchdog_test_support::certs::PemFiles;
use watchdog_test_support::watchdog::{SERVER_NAME, Service};

/// Commands to look around with.
pub(super) fn look_around(
    lease_probe: &Service,
    coordinator: &Service,
    weeder: &Service,
    files: &PemFiles,
    page: &str,
    sandbox: &str,
) -> anyhow::Result<String> {
    let text = format!(
        "\nEverything is still running; press Ctrl-C to end it.\n\n\
         Cut the network of a shoot:  {sandbox}/\n\
         Watch what happens:          {page}\n\n\
         Look around with:\n\n"
    );
    Ok([
        &text,
        &watchdogctl(lease_probe, coordinator, weeder, files)?,
        "\nor with grpcurl:\n\n",
        &grpcurl(lease_probe, coordinator, weeder, files),
        &format!("curl http://{}/metrics\n", lease_probe.admin),
    ]
    .concat())
}

/// The options of the connection come from the environment, so that the commands are short.
fn watchdogctl(
    lease_probe: &Service,
    coordinator: &Service,
    weeder: &Service,
    files: &PemFiles,
) -> anyhow::Result<String> {
    let mut text = String::new();
    for (name, service) in [
        ("LEASE_PROBE", lease_probe),
        ("SCALING_COORDINATOR", coordinator),
        ("WEEDER", weeder),
    ] {
        text.push_str(&format!("export WATCHDOG_{name}={}\n", service.grpc));
    }
    for (name, path) in [("CA", &files.ca), ("CERT", &files.cert), ("KEY", &files.key)] {
        text.push_str(&format!("export WATCHDOG_TLS_{name}={}\n", path.display()));
    }
    text.push_str(&format!("export WATCHDOG_TLS_SERVER_NAME={SERVER_NAME}\n"));
    let program = binaries::path(binaries::WATCHDOGCTL)?;
    let shoot = "shoot--sandbox--alpha";
    for command in [
        "status --watch",
        &format!("shoot {shoot}"),
        &format!("plan {shoot} --direction down"),
        "verdicts -o wide",
        "scaling",
        "weeders",
        "check",
    ] {
        text.push_str(&format!("{} {command}\n", program.display()));
    }
    Ok(text)
}

fn grpcurl(lease_probe: &Service, coordinator: &Service, weeder: &Service, files: &PemFiles) -> String {
    let call = |service: &Service, data: &str, method: &str| {
        format!(
            "grpcurl -cacert {} -cert {} -key {} -servername {SERVER_NAME} -d '{data}' {} gardener.watchdog.{method}\n",
            files.ca.display(),
            files.cert.display(),
            files.key.display(),
            service.grpc
        )
    };
    let mut text = String::new();
    text.push_str(&call(
        lease_probe,
        "{}",
        "probe.v1.LeaseProbeService/ListVerdicts",
    ));
    text.push_str(&call(
        lease_probe,
        "{}",
        "probe.v1.LeaseProbeService/WatchVerdicts",
    ));
    let plan = "{\"shoot\":\"shoot--sandbox--alpha\",\"direction\":\"DIRECTION_DOWN\"}";
    text.push_str(&call(coordinator, plan, "scaling.v1.ScalingService/PlanScaling"));
    text.push_str(&call(coordinator, "{}", "scaling.v1.ScalingService/ListScaling"));
    text.push_str(&call(weeder, "{}", "weeder.v1.WeederService/ListWeeders"));
    text
}
