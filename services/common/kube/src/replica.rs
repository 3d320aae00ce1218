//! How a replica of a service takes its place on the seed.

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchdog_runtime::args::advertised;
use watchdog_runtime::service_builder::ServiceBuilder;

use crate::authority::{CertificateIssuer, LOOK_EVERY, ObserverSecret};
use crate::leadership::{ElectionConfig, ElectionTiming, LeaderElection, Leadership};
use crate::members::{FollowedMembers, Members, OwnLease};
use crate::permissions::{Permission, of_authority, of_leader, of_member};
use crate::{metrics, seed};

/// The grantor of the permissions on the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionGrantor {
    /// The chart: all that the programs can use.
    Chart,
    /// gardenlet, for the Go program: no Events on dependants, and no namespaces for the weeder (ADR 0004).
    Gardenlet,
}

/// With `--tls-authority`: keeps a certificate for the name of the service. The receiver becomes true when other
/// replicas can call this process: at once, or with its first certificate.
fn issue_certificates(base: &ServiceBuilder, service: &str, seed: &kube::Client) -> watch::Receiver<bool> {
    let (Some(secret), Some(tls)) = (&base.common.tls_authority, &base.tls) else {
        return watch::Sender::new(true).subscribe();
    };
    let name = base.common.server_name(service);
    let observer = base.common.tls_observer.clone().zip(base.common.observer_name());
    let issuer = CertificateIssuer {
        client: seed.clone(),
        namespace: base.common.namespace.clone(),
        secret: secret.clone(),
        names: vec![name.clone(), format!("{name}.cluster.local")],
        tls: tls.clone(),
        readiness: base.readiness.clone(),
        has_certificate: watch::Sender::new(false),
        observer: observer.map(|(secret, name)| ObserverSecret { secret, name }),
        clock: Box::new(Timestamp::now),
        look_every: LOOK_EVERY,
    };
    let has_certificate = issuer.has_certificate.subscribe();
    base.tasks
        .critical("certificate", issuer.run(base.draining.clone()));
    has_certificate
}

/// A replica on its seed.
#[derive(Clone)]
pub struct Replica {
    /// Client for the seed.
    pub seed: kube::Client,
    /// The grantor of the permissions on the seed.
    pub granted_by: PermissionGrantor,
    /// The permissions that the membership or the election needs.
    pub permissions: Vec<Permission>,
}

/// A client for the seed, under the name of a program.
async fn connect(base: &ServiceBuilder, program: &str) -> anyhow::Result<kube::Client> {
    let agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
    // Boxed, because it is large and part of the future of each program's start.
    Box::pin(seed::connect(base.common.kubeconfig.as_deref(), &agent)).await
}

/// Runs a task until the drain once other replicas can call this process.
fn spawn_once_callable<F: Future<Output = ()> + Send + 'static>(
    base: &ServiceBuilder,
    name: &'static str,
    mut callable: watch::Receiver<bool>,
    task: impl FnOnce(CancellationToken) -> F + Send + 'static,
) {
    let stop = base.draining.clone();
    base.tasks.critical(name, async move {
        tokio::select! {
            _ = callable.wait_for(|callable| *callable) => {}
            () = stop.cancelled() => return Ok(()),
        }
        task(stop).await;
        Ok(())
    });
}

impl Replica {
    /// Connects to the seed, gets a certificate where `--tls-authority` asks for it, and then joins the replicas of
    /// `service`. Its Lease is deleted at the drain.
    ///
    /// # Errors
    /// When there is no way to the seed.
    pub async fn join_members(
        base: &ServiceBuilder,
        service: &'static str,
    ) -> anyhow::Result<(Self, watch::Receiver<Members>)> {
        metrics::register();
        let seed = connect(base, service).await?;
        // Nobody can call a replica without a certificate.
        let callable = issue_certificates(base, service, &seed);
        let own = OwnLease {
            identity: base.identity.clone(),
            address: advertised(base.grpc_addr).to_string().into(),
        };
        let (namespace, readiness) = (&base.common.namespace, base.readiness.clone());
        let (members, following) =
            FollowedMembers::new(seed.clone(), namespace, service, readiness, Some(own));
        spawn_once_callable(base, "membership", callable, |stop| following.run(stop));
        let replica = Self {
            seed,
            granted_by: PermissionGrantor::Chart,
            permissions: of_member(&base.common),
        };
        Ok((replica, members))
    }

    /// Connects to the seed, and gets a certificate where `--tls-authority` asks for it. Has no Lease: nobody finds
    /// this replica, and it is the only member that it knows.
    ///
    /// # Errors
    /// When there is no way to the seed.
    pub async fn standalone(
        base: &ServiceBuilder,
        service: &'static str,
    ) -> anyhow::Result<(Self, watch::Receiver<Members>)> {
        let seed = connect(base, service).await?;
        // Nobody waits for the certificate but the callers.
        drop(issue_certificates(base, service, &seed));
        let members = Members::from([(base.identity.clone(), "".into())]);
        let replica = Self {
            seed,
            granted_by: PermissionGrantor::Chart,
            permissions: of_authority(&base.common),
        };
        Ok((replica, watch::Sender::new(members).subscribe()))
    }

    /// The addresses of the replicas of `service`, by their membership Leases. From now on this replica needs the
    /// permission to list them.
    #[must_use]
    pub fn find_members(&mut self, base: &ServiceBuilder, service: &'static str) -> watch::Receiver<Members> {
        let namespace = &base.common.namespace;
        let list = Permission::new("list", "coordination.k8s.io", "leases");
        self.permissions.push(list.in_namespace(namespace));
        let readiness = base.readiness.part(service);
        let (found, members) = FollowedMembers::new(self.seed.clone(), namespace, service, readiness, None);
        let stop = base.draining.clone();
        base.tasks.critical("discovery", async move {
            members.run(stop).await;
            Ok(())
        });
        found
    }

    /// Connects to the seed, gets a certificate where `--tls-authority` asks for it, and then takes part in the leader
    /// election of the replicas of `service` on one Lease. The blocker `leader-election` stays until the Lease was
    /// read, so a standby is ready. The Lease is released at the drain.
    ///
    /// With the permissions that gardenlet grants it stands in the place of the Go program, and other replicas cannot
    /// reach it.
    ///
    /// # Errors
    /// When there is no way to the seed.
    pub async fn elect(
        base: &ServiceBuilder,
        service: &'static str,
        lease: &'static str,
        timing: ElectionTiming,
        granted_by: PermissionGrantor,
    ) -> anyhow::Result<(Self, Leadership)> {
        metrics::register();
        let (program, address) = match granted_by {
            PermissionGrantor::Chart => {
                let address = advertised(base.grpc_addr).to_string();
                (service.to_owned(), Some(address.into()))
            }
            PermissionGrantor::Gardenlet => (format!("dependency-watchdog-{service}"), None),
        };
        let seed = connect(base, &program).await?;
        // A leader without a certificate would have nothing to act on.
        let callable = issue_certificates(base, service, &seed);
        let config = ElectionConfig {
            client: seed.clone(),
            namespace: base.common.namespace.clone(),
            lease,
            service,
            identity: base.identity.clone(),
            address,
            readiness: base.readiness.clone(),
            timing,
        };
        let (leadership, election) = LeaderElection::join(config, base.draining.clone());
        spawn_once_callable(base, "leader-election", callable, |_| election.run());
        let mut permissions = of_leader(lease, &base.common);
        permissions.extend(of_authority(&base.common));
        let replica = Self {
            seed,
            granted_by,
            permissions,
        };
        Ok((replica, leadership))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use k8s_openapi::api::core::v1::Secret;
    use kube::Api;
    use kube::api::PostParams;
    use serde_json::json;
    use watchdog_runtime::args::CommonArgs;
    use watchdog_runtime::process::Process;
    use watchdog_test_support::in_process::api_server;
    use watchdog_test_support::sandboxed::client;

    use super::*;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        common: CommonArgs,
    }

    async fn base(args: &[&str]) -> ServiceBuilder {
        let always = [
            "weeder",
            "--config-file=/none",
            "--grpc-addr=127.0.0.1:0",
            "--admin-addr=127.0.0.1:0",
            "--identity=weeder-0",
        ];
        let args = Args::try_parse_from(always.iter().chain(args)).unwrap();
        ServiceBuilder::bind(args.common, Process::default())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_replica_can_be_called_at_once_or_with_its_first_certificate() {
        let api = api_server(&["garden"]).await.unwrap();
        let seed = client(&api.kubeconfig("weeder")).await.unwrap();
        let empty: Secret = serde_json::from_value(json!({"metadata": {"name": "authority"}})).unwrap();
        let secrets: Api<Secret> = Api::namespaced(seed.clone(), "garden");
        secrets.create(&PostParams::default(), &empty).await.unwrap();
        let plain = base(&["--insecure-plaintext"]).await;
        assert!(*issue_certificates(&plain, "weeder", &seed).borrow());

        let secured = base(&["--tls-authority=authority"]).await;
        let mut callable = issue_certificates(&secured, "weeder", &seed);
        assert!(!*callable.borrow(), "the Secret has not been read yet");
        let issued = callable.wait_for(|callable| *callable);
        tokio::time::timeout(Duration::from_secs(120), issued)
            .await
            .unwrap()
            .unwrap();
    }
}
