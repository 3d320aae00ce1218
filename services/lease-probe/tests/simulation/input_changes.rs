//! The inputs of a shoot's prober that change in a history.

use std::sync::Arc;

use lease_probe::cluster::kubeconfig::{Access, access};
use lease_probe::controller::prober::ProbeInputs;
use lease_probe::domain::outcome::ProbeFailure;
use watchdog_api::eligibility::ShootSettings;
use watchdog_api::prober::ProberConfig;

use crate::node_lifecycle_input::TimeSpan;
use crate::random::Micros;
use crate::script::{ShootScript, THRESHOLD, required};
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

/// A setting in the file of the prober.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SettingChange {
    /// `nodeLeaseFailureFraction`, in percent.
    Fraction(usize),
    /// `failureThreshold` and `successThreshold`.
    Thresholds(u32, u32),
    /// `probeInterval`.
    Interval(Micros),
    /// `internalProbeFailureBackOffDuration`.
    BackOff(Micros),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct InputChanges {
    /// In order.
    pub(crate) graces: Vec<GraceChange>,
    /// In order.
    pub(crate) secrets: Vec<(Micros, SecretChange)>,
    /// The same for the external endpoint.
    pub(crate) external_secrets: Vec<(Micros, SecretChange)>,
    /// In order.
    pub(crate) settings: Vec<(Micros, SettingChange)>,
}

impl InputChanges {
    /// When the prober has other inputs.
    pub(crate) fn instants(&self) -> impl Iterator<Item = Micros> {
        let graces = self.graces.iter();
        let graces = graces.flat_map(|change| [change.in_cluster, change.rolled_out]);
        let secrets = self.secrets.iter().chain(&self.external_secrets);
        let secrets = secrets.map(|(at, _)| *at);
        graces
            .chain(secrets)
            .chain(self.settings.iter().map(|(at, _)| *at))
    }

    /// The same for a prober that learns of them this much later.
    pub(crate) fn later_by(&self, by: Micros) -> Self {
        let mut later = self.clone();
        for change in &mut later.graces {
            change.in_cluster += by;
            change.rolled_out += by;
        }
        let secrets = later.secrets.iter_mut().chain(&mut later.external_secrets);
        secrets.for_each(|(at, _)| *at += by);
        later.settings.iter_mut().for_each(|(at, _)| *at += by);
        later
    }

    /// The configuration at `at`.
    fn config(&self, first: &Arc<ProberConfig>, at: Micros) -> Arc<ProberConfig> {
        let mut config = first.clone();
        for (_, change) in self.settings.iter().filter(|(from, _)| *from <= at) {
            let config = Arc::make_mut(&mut config);
            match *change {
                SettingChange::Fraction(percent) => {
                    config.node_lease_failure_fraction = percent as f64 / 100.0;
                }
                SettingChange::Thresholds(failure, success) => {
                    (config.failure_threshold, config.success_threshold) = (failure, success);
                }
                SettingChange::Interval(interval) => config.probe_interval = duration(interval),
                SettingChange::BackOff(most) => {
                    config.internal_probe_failure_back_off_duration = duration(most);
                }
            }
        }
        config
    }

    /// The changes that are known at `at`, and no others.
    pub(crate) fn frozen_at(&self, at: Micros) -> Self {
        let mut frozen = self.clone();
        frozen.graces.retain(|change| change.in_cluster <= at);
        frozen.secrets.retain(|(from, _)| *from <= at);
        frozen.external_secrets.retain(|(from, _)| *from <= at);
        frozen.settings.retain(|(from, _)| *from <= at);
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

    /// How many of `candidates` reach the threshold at `at`.
    pub(crate) fn required(&self, candidates: usize, at: Micros) -> usize {
        let fractions = { self.input_changes.settings.iter() }.filter(|(from, _)| *from <= at);
        let percent = fractions.fold(THRESHOLD, |percent, (_, change)| match change {
            SettingChange::Fraction(percent) => *percent,
            _ => percent,
        });
        required(candidates, percent)
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
        let access = |secrets: &[(Micros, SecretChange)]| {
            let secret = secrets.iter().rfind(|(from, _)| *from <= at);
            kubeconfig(secret.map_or(SecretChange::Rotated(0), |(_, secret)| *secret))
        };
        let mut settings = ShootSettings {
            node_monitor_grace: Some(duration(self.grace_in_cluster(at))),
            ..ShootSettings::default()
        };
        if let Some(before) = before {
            let is_rolled_out = |change: &GraceChange| change.rolled_out <= at || at < change.in_cluster;
            let is_rolled_out = self.input_changes.graces.iter().all(is_rolled_out);
            let default = config.kcm_node_monitor_grace_duration;
            settings = settings.following(&before.settings, is_rolled_out, default);
        }
        ProbeInputs {
            settings: Arc::new(settings),
            config: self.input_changes.config(config, at),
            internal: access(&self.input_changes.secrets),
            external: { self.external_cuts.as_ref() }.map(|_| access(&self.input_changes.external_secrets)),
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
