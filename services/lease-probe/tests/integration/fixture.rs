//! A seed in memory with simulated shoots, and the files that lease-probe reads.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use watchdog_sandbox::ApiServer;
use watchdog_sandbox::resource::keys;
use watchdog_test_support::fixtures;
use watchdog_test_support::in_process::ServiceFiles;
use watchdog_test_support::simulation::{
    Sandbox, SandboxConfig, SimTiming, SimulatedShoot, SimulatedShootSpec,
};

use crate::{eventually, in_process};

/// The user that lease-probe is on the seed.
pub const USER: &str = "lease-probe";

/// Where nodes keep their Leases.
pub const NODE_LEASES: &str = "kube-node-lease";

/// Where they are listed.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

pub struct Fixture {
    pub sandbox: Sandbox,
    pub files: ServiceFiles,
}

/// The configuration with short times, and these fields instead or in addition.
pub fn config(fields: &[(&str, &str)]) -> String {
    let mut all = BTreeMap::from([
        ("probeInterval", "1s"),
        ("initialDelay", "0s"),
        ("probeTimeout", "5s"),
        ("internalProbeFailureBackOffDuration", "1s"),
    ]);
    all.extend(fields.iter().copied());
    let lines = all.iter().map(|(field, value)| format!("{field}: {value}\n"));
    fixtures::prober(&lines.collect::<String>(), "0s")
}

/// Ten times as fast as a real shoot: kubelets renew every second, and a lease is expired after three.
pub fn fast() -> SimTiming {
    times(10.0)
}

/// Twice as fast again, for shoots that are cut off anyway: no kubelet has to renew in time.
pub fn faster() -> SimTiming {
    times(20.0)
}

fn times(factor: f64) -> SimTiming {
    SimTiming {
        ready_delay: Duration::from_millis(100),
        stop_delay: Duration::from_millis(100),
        ..SimTiming::scaled(factor)
    }
}

/// As fast as a real shoot: no lease expires while a test lasts, however busy the machine is.
pub fn real() -> SimTiming {
    SimTiming::default()
}

impl Fixture {
    /// A seed with shoots of `nodes` nodes each, spread over three zones.
    pub async fn new(timing: SimTiming, nodes: usize, shoots: &[&str]) -> Self {
        let options = SandboxConfig {
            timing,
            shoots: shoots
                .iter()
                .map(|name| SimulatedShootSpec::new(name, nodes))
                .collect(),
        };
        Self {
            sandbox: Sandbox::start(options).await.unwrap(),
            files: ServiceFiles::new(&config(&[])).unwrap(),
        }
    }

    pub fn configure(&self, fields: &[(&str, &str)]) {
        self.files.configure(&config(fields)).unwrap();
    }

    pub fn seed(&self) -> &ApiServer {
        self.sandbox.seed()
    }

    /// A shoot by its short name.
    pub fn shoot(&self, name: &str) -> SimulatedShoot {
        self.sandbox.shoot(name).unwrap()
    }

    /// Writes a Secret with a kubeconfig into the shoot's namespace, instead of the one that is there.
    pub fn set_kubeconfig(&self, shoot: &SimulatedShoot, secret: &str, kubeconfig: &str) {
        self.set_secret(shoot, secret, json!({ "kubeconfig": encoded(kubeconfig) }));
    }

    /// The same with any data.
    pub fn set_secret(&self, shoot: &SimulatedShoot, secret: &str, data: Value) {
        let (seed, namespace) = (self.seed(), shoot.namespace());
        if seed.store().find(&keys::SECRETS, namespace, secret).is_some() {
            let change = |object: &mut Value| object["data"] = data;
            in_process::modify(seed, &keys::SECRETS, namespace, secret, change).unwrap();
        } else {
            let object = json!({ "metadata": { "name": secret }, "type": "Opaque", "data": data });
            seed.create(&keys::SECRETS, namespace, object).unwrap();
        }
    }

    pub fn delete_secret(&self, shoot: &SimulatedShoot, secret: &str) {
        in_process::delete(self.seed(), &keys::SECRETS, shoot.namespace(), secret).unwrap();
    }

    /// Makes a membership Lease, as a replica does.
    pub fn make_member(&self, identity: &str, address: &str) {
        let of = |name: &str| format!("dependency-watchdog.gardener.cloud/{name}");
        let object = json!({
            "metadata": {
                "name": format!("dependency-watchdog-lease-probe-{identity}"),
                "labels": { of("service"): "lease-probe" },
                "annotations": { of("identity"): identity, of("address"): address },
            },
            "spec": { "holderIdentity": identity },
        });
        self.seed().create(&keys::LEASES, "garden", object).unwrap();
    }

    /// The holder of a replica's membership Lease; none when there is no Lease.
    pub fn holder(&self, identity: &str) -> Option<String> {
        let leases = self.seed().store().all(&keys::LEASES, Some("garden"));
        let own = leases
            .iter()
            .find(|lease| lease.name().ends_with(&format!("-{identity}")))?;
        Some(own.text("/spec/holderIdentity").to_owned()).filter(|holder| !holder.is_empty())
    }
}

/// As data of a Secret.
pub fn encoded(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

/// The text with what stands behind `field: ` replaced.
pub fn with_field(text: &str, field: &str, value: &str) -> String {
    let edited = |line: &str| match line.split_once(&format!("{field}: ")) {
        Some((before, _)) => format!("{before}{field}: {value}\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(edited).collect()
}

/// The text after `field: `.
pub fn field(text: &str, field: &str) -> String {
    let value = text
        .lines()
        .find_map(|line| line.split_once(&format!("{field}: ")));
    value.unwrap().1.to_owned()
}

/// Scales the shoot's own controllers to zero, so that nodes and machines stay as the test makes them.
pub async fn without_controllers(shoot: &SimulatedShoot) {
    let controllers = ["kube-controller-manager", "machine-controller-manager"];
    for controller in controllers {
        shoot.scale(controller, 0).unwrap();
    }
    eventually("the shoot's controllers are gone", || {
        let gone = |name| {
            shoot
                .workload(name)
                .is_some_and(|workload| workload.ready_replicas == 0)
        };
        controllers.into_iter().all(gone)
    })
    .await;
}
