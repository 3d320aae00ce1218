//! The actions of a scenario on a shoot.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use watchdog_proto::probe::v1::Outcome;

use super::{ShootUnderTest, is_whole};
use watchdog_test_support::fixtures::PROBE_SECRET;
use watchdog_test_support::history::timeline::Fact;
use watchdog_test_support::nodes::{Cut, LEASE_NAMESPACE};
use watchdog_test_support::real::{cluster_resource, machine_resource};
use watchdog_test_support::wait;

// === impl ShootUnderTest ===

impl ShootUnderTest {
    /// Gardener has created it: it is probed from now on.
    pub(crate) async fn hand_over(&self) -> anyhow::Result<()> {
        self.last_operation("Reconcile", "Succeeded").await
    }

    /// Hands it over and waits until it is known to be healthy, and each kubelet has renewed in its own rhythm.
    pub(crate) async fn hand_over_healthy(&self) -> anyhow::Result<()> {
        let before = self.renewals().await?;
        self.hand_over().await?;
        self.wait_outcome(Outcome::Healthy).await?;
        self.wait_renewed(&before).await
    }

    /// Sets `status.lastOperation` of the Shoot.
    pub(crate) async fn last_operation(&self, kind: &str, state: &str) -> anyhow::Result<()> {
        self.change_shoot(json!({"status": {"lastOperation": {"type": kind, "state": state}}}))
            .await
    }

    /// Changes the Shoot in the Cluster, by a merge patch.
    pub(crate) async fn change_shoot(&self, patch: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"shoot": patch}}));
        self.clusters()
            .patch(self.namespace(), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Deletes the Cluster.
    pub(crate) async fn delete_cluster(&self) -> anyhow::Result<()> {
        self.clusters()
            .delete(self.namespace(), &DeleteParams::default())
            .await?;
        Ok(())
    }

    fn clusters(&self) -> Api<DynamicObject> {
        Api::all_with(self.seed.client(), &cluster_resource())
    }

    // --- the network

    /// Cuts all nodes off, here and at the twin.
    pub(crate) async fn cut_all(&self) {
        self.cut(Cut::All).await;
    }

    /// Cuts a zone off, here and at the twin.
    pub(crate) async fn cut_zone(&self, zone: &str) {
        self.cut(Cut::Zone(zone.to_owned())).await;
    }

    async fn cut(&self, cut: Cut) {
        self.site.cut(cut.clone()).await;
        if let Some(twin) = &self.twin {
            twin.cut(cut).await;
        }
    }

    /// Reconnects all nodes, here and at the twin, and counts from now on how long it takes until all is as before.
    pub(crate) async fn reconnect(&self) {
        self.site.reconnect();
        let of = self.plan.nodes;
        let now = Instant::now();
        let mut state = self.state.lock();
        state.healed.get_or_insert(now);
        if let Some(twin) = self.twin.clone()
            && state.twin.is_none()
        {
            let bound = self.times.bound * 2;
            let whole = async move {
                twin.reconnect();
                let whole = wait::until_true("the twin is whole", bound, || is_whole(&twin, of)).await;
                whole.ok().map(|()| now.elapsed())
            };
            state.twin = Some(AbortOnDropHandle::new(tokio::spawn(whole)));
        }
    }

    /// Ends its API server; its kubelets cannot renew either.
    pub(crate) async fn stop_api_server(&self) -> anyhow::Result<()> {
        self.site.kubelets.cut(Cut::All).await;
        self.site.server.stop().await
    }

    /// Starts its API server again; its kubelets try again in their own rhythm.
    pub(crate) async fn start_api_server(&self) -> anyhow::Result<()> {
        // It answers for seconds before it is ready, and kubelets do not wait for that.
        self.site.kubelets.reconnect();
        self.site.server.start_again().await
    }

    async fn wait_renewed(&self, before: &BTreeMap<String, String>) -> anyhow::Result<()> {
        wait::until_true("every lease is renewed", self.times.bound, || async {
            let now = self.renewals().await?;
            Ok(before.iter().all(|(node, time)| now.get(node) != Some(time)))
        })
        .await
    }

    // --- its objects

    /// Names of its nodes, sorted.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let nodes = self.site.kubelets.list();
        nodes.into_iter().map(|(name, _)| name).collect()
    }

    /// Annotates a node.
    pub(crate) async fn annotate_node(
        &self,
        node: &str,
        annotation: &str,
        value: &str,
    ) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
        let nodes: Api<Node> = Api::all(self.api());
        nodes.patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Adds a condition to a node, or replaces it.
    pub(crate) async fn set_condition(
        &self,
        node: &str,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.api());
        let found = nodes.get_status(node).await?.status.unwrap_or_default();
        let mut conditions: Vec<Value> = found
            .conditions
            .unwrap_or_default()
            .iter()
            .filter(|condition| condition.type_ != kind)
            .map(serde_json::to_value)
            .collect::<Result<_, _>>()?;
        conditions.push(json!({"type": kind, "status": status, "reason": reason}));
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        nodes.patch_status(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Sets the phase of the machine of a node.
    pub(crate) async fn set_machine_phase(&self, node: &str, phase: &str) -> anyhow::Result<()> {
        let machines: Api<DynamicObject> =
            Api::namespaced_with(self.seed.client(), self.namespace(), &machine_resource());
        let of = ListParams::default().labels(&format!("node={node}"));
        let found = machines.list(&of).await?;
        let machine = found.items.first().context("a node without a machine")?;
        let status = json!({"status": {"currentStatus": {"phase": phase}}});
        machines
            .patch_status(
                &machine.name_any(),
                &PatchParams::default(),
                &Patch::Merge(status),
            )
            .await?;
        Ok(())
    }

    /// Deletes the lease of a node.
    pub(crate) async fn delete_lease(&self, node: &str) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.api(), LEASE_NAMESPACE);
        leases.delete(node, &DeleteParams::default()).await?;
        Ok(())
    }

    /// When each lease was renewed last, as it stands there.
    async fn renewals(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let leases: Api<Lease> = Api::namespaced(self.api(), LEASE_NAMESPACE);
        let list = leases.list(&ListParams::default()).await?;
        let renewed = |lease: &Lease| {
            let time = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
            time.map(|time| time.0.to_string()).unwrap_or_default()
        };
        Ok(list
            .iter()
            .map(|lease| (lease.name_any(), renewed(lease)))
            .collect())
    }

    /// Replaces the kubeconfig in the probe's Secret.
    pub(crate) async fn set_kubeconfig(&self, kubeconfig: &str) -> anyhow::Result<()> {
        let data = k8s_openapi::ByteString(kubeconfig.as_bytes().to_vec());
        let patch = Patch::Merge(json!({"data": {"kubeconfig": data}}));
        self.on_seed::<Secret>()
            .patch(PROBE_SECRET, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// The kubeconfig that Gardener gives the probe.
    pub(crate) fn probe_kubeconfig(&self) -> anyhow::Result<String> {
        self.site.probe_kubeconfig()
    }

    /// Changes a dependant as an operator or Gardener does, by a merge patch.
    pub(crate) async fn change_dependant(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        let deployments = self.on_seed::<Deployment>();
        let changed = deployments
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        let version = changed
            .resource_version()
            .context("an object without a version")?;
        self.fact(Fact::Operator(version.parse()?));
        Ok(())
    }

    /// Scales a dependant as an operator does.
    pub(crate) async fn scale(&self, name: &str, replicas: i32) -> anyhow::Result<()> {
        self.change_dependant(name, json!({"spec": {"replicas": replicas}}))
            .await
    }
}
