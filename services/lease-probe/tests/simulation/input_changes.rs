//! The inputs of a shoot's prober that change in a history.

use std::sync::Arc;

use lease_probe::cluster::kubeconfig::{Access, access};
use lease_probe::controller::prober::ProbeInputs;
use lease_probe::domain::outcome::ProbeFailure;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::prober::ProberConfig;

use crate::node_lifecycle_input::TimeSpan;
use crate::random::Micros;
use crate::script::ShootScript;
use crate::virtual_time::duration;

/// Kubeconfigs that differ by their token.
const KUBECONFIGS: usize = 4;

/// Another `nodeMonitorGracePeriod`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GraceChange {
    /// When the Cluster has it. gardenlet writes that at the start of an operation.
    pub(crate) in_cluster: Micros,
    /// When the operation ends, and kube-controller-manager has just been started again with it.
    pub(crate) rolled_out: Micros,
    pub(crate) grace: Micros,
}

/// The content of the Secret with the kubeconfig from a moment on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SecretChange {
    /// A kubeconfig of this number.
    Rotated(usize),
    /// Something that is no kubeconfig.
    Broken,
    /// There is none.
    Deleted,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct InputChanges {
    /// In order.
    pub(crate) graces: Vec<GraceChange>,
    /// In order.
    pub(crate) secrets: Vec<(Micros, SecretChange)>,
}

impl InputChanges {
    /// When the prober has other inputs.
    pub(crate) fn instants(&self) -> impl Iterator<Item = Micros> {
        let graces = self.graces.iter();
        let graces = graces.flat_map(|change| [change.in_cluster, change.rolled_out]);
        graces.chain(self.secrets.iter().map(|(at, _)| *at))
    }

    /// The changes that are known at `at`, and no others.
    pub(crate) fn frozen_at(&self, at: Micros) -> Self {
        let mut frozen = self.clone();
        frozen.graces.retain(|change| change.in_cluster <= at);
        frozen.secrets.retain(|(from, _)| *from <= at);
        frozen
    }

    /// The terms of kube-controller-manager if each change starts it again.
    pub(crate) fn restart(&self, terms: Vec<TimeSpan>) -> Vec<TimeSpan> {
        let split = |terms: Vec<TimeSpan>, change: &GraceChange| {
            let split = |term: TimeSpan| match term.contains(change.rolled_out) {
                true => vec![
                    TimeSpan::new(term.from, change.rolled_out),
                    TimeSpan::new(change.rolled_out, term.to),
                ],
                false => vec![term],
            };
            terms.into_iter().flat_map(split).collect()
        };
        self.graces.iter().fold(terms, split)
    }
}

impl ShootScript {
    /// The grace period that the Cluster has at `at`.
    pub(crate) fn grace_in_cluster(&self, at: Micros) -> Micros {
        let known = |change: &&GraceChange| change.in_cluster <= at;
        let last = self.input_changes.graces.iter().rfind(known);
        last.map_or(self.grace, |change| change.grace)
    }

    /// The longest grace period of the history.
    pub(crate) fn longest_grace(&self) -> Micros {
        let changes = self.input_changes.graces.iter();
        changes.map(|change| change.grace).fold(self.grace, Micros::max)
    }

    /// The inputs of its prober at `at`. The ones `before` matter to a prober that runs.
    pub(crate) fn inputs(
        &self,
        config: &Arc<ProberConfig>,
        at: Micros,
        before: Option<&ProbeInputs>,
    ) -> ProbeInputs {
        let secrets = self.input_changes.secrets.iter();
        let secret = secrets.rev().find(|(from, _)| *from <= at);
        let mut settings = ShootSettings {
            node_monitor_grace: Some(duration(self.grace_in_cluster(at))),
            ..ShootSettings::default()
        };
        if let Some(before) = before {
            let is_rolled_out = |change: &GraceChange| change.rolled_out <= at || at < change.in_cluster;
            let is_rolled_out = self.input_changes.graces.iter().all(is_rolled_out);
            settings = settings.following(&before.settings, is_rolled_out);
        }
        ProbeInputs {
            settings: Arc::new(settings),
            config: config.clone(),
            internal: kubeconfig(secret.map_or(SecretChange::Rotated(0), |(_, secret)| *secret)),
            external: { self.external_cuts.as_ref() }.map(|_| kubeconfig(SecretChange::Rotated(0))),
        }
    }
}

pub(crate) fn kubeconfig(secret: SecretChange) -> Access {
    static VALID: std::sync::OnceLock<[Access; KUBECONFIGS]> = std::sync::OnceLock::new();
    let text = |number| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: shoot\ncontexts:\n- name: shoot\n  context: {{cluster: \
             shoot, user: probe}}\nclusters:\n- name: shoot\n  cluster: {{server: 'https://shoot:443'}}\nusers:\n- \
             name: probe\n  user: {{token: number-{number}}}\n"
        )
    };
    let valid = |number| access(Ok(Some(text(number).as_bytes())));
    match secret {
        SecretChange::Rotated(number) => {
            VALID.get_or_init(|| std::array::from_fn(valid))[number % KUBECONFIGS].clone()
        }
        SecretChange::Broken => access(Ok(Some(b"no kubeconfig"))),
        SecretChange::Deleted => Err(ProbeFailure::Kubeconfig("there is no Secret".to_owned())),
    }
}
