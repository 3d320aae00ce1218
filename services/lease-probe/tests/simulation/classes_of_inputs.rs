//! Steps of histories in which the inputs of a prober change, or what its shoot consists of.

use crate::absence::{Absence, Absent, Form};
use crate::builder::Builder;
use crate::input_changes::{GraceChange, SecretChange, SettingChange};
use crate::kubelet::{KubeletModel, NodeClock};
use crate::random::{Micros, SECOND};
use crate::script::{NodeFact, NodeScript};
use crate::timeline::{Behaviour, FOREVER, FailsFor};

fn change_secret(history: &mut Builder, at: Micros, secret: SecretChange) {
    history.shoot().input_changes.secrets.push((at, secret));
    history.until(at);
}

/// In a loss or before it, once or every few seconds. The credentials before are accepted until then.
pub(crate) fn kubeconfig_rotated(history: &mut Builder) {
    let mut at = history.random.between(40 * SECOND, 130 * SECOND);
    for number in 1..2 + history.random.below(20) {
        change_secret(history, at, SecretChange::Rotated(number));
        at += history.random.seconds(0.1, 10.0);
    }
}

/// Nobody can list the leases with what the Secret holds, or with the credentials before, until the Secret has others.
pub(crate) fn kubeconfig_unusable(history: &mut Builder) -> Micros {
    let at = history.some_time();
    let to = at + history.random.seconds(1.0, 90.0);
    let secret = history
        .random
        .pick(&[None, Some(SecretChange::Broken), Some(SecretChange::Deleted)]);
    match secret {
        Some(secret) => change_secret(history, at, secret),
        None => {
            let (share, status, of) = (1.0, 401, FailsFor::LeaseProbe);
            history.server(at, to - at, Behaviour::Fails { share, status, of });
        }
    }
    change_secret(history, to, SecretChange::Rotated(1));
    to
}

/// A loss some seconds after the Secret was mended.
pub(crate) fn kubeconfig_unusable_before_a_loss(history: &mut Builder) {
    let at = kubeconfig_unusable(history) + history.random.seconds(1.0, 40.0);
    history.lose(at);
}

/// The Machines cannot be listed, and one node is dead, so that they would be. A loss begins after that.
pub(crate) fn machines_refused_before_a_loss(history: &mut Builder) {
    let from = history.random.between(20 * SECOND, 60 * SECOND);
    let to = from + history.random.seconds(25.0, 90.0);
    history.shoot().absences.push(Absence {
        from,
        to,
        absent: Absent::Machines,
        form: Form::NotFound,
    });
    let at = to + history.random.seconds(0.0, 20.0);
    history.lose(at);
}

/// Another grace period around a loss, once or twice. An operation takes up to three minutes.
pub(crate) fn grace_changes(history: &mut Builder) {
    const GRACES: [i64; 4] = [30, 40, 80, 120];
    history.shoot().grace = history.random.pick(&GRACES) * SECOND;
    let mut at = history.random.between(20 * SECOND, 140 * SECOND);
    for _ in 0..1 + history.random.below(2) {
        let rolled_out = at + history.random.seconds(5.0, 180.0);
        let grace = history.random.pick(&GRACES) * SECOND;
        let in_cluster = at;
        history.shoot().input_changes.graces.push(GraceChange {
            in_cluster,
            rolled_out,
            grace,
        });
        history.until(rolled_out);
        at = rolled_out + history.random.seconds(1.0, 60.0);
    }
    let longest = history.shoot().longest_grace();
    history.until(140 * SECOND + longest);
}

/// Up to four times another setting.
pub(crate) fn settings_change(history: &mut Builder) {
    let mut at = history.random.between(20 * SECOND, 140 * SECOND);
    for _ in 0..1 + history.random.below(4) {
        let thresholds = [(1, 1), (3, 1), (1, 3), (3, 3)];
        let change = match history.random.below(4) {
            0 => SettingChange::Fraction(history.random.pick(&[20, 50, 60, 75, 100])),
            1 => {
                let (failure, success) = history.random.pick(&thresholds);
                SettingChange::Thresholds(failure, success)
            }
            2 => SettingChange::Interval(history.random.pick(&[1, 10, 30, 600]) * SECOND),
            _ => SettingChange::BackOff(history.random.pick(&[0, 5, 30, 600]) * SECOND),
        };
        history.shoot().input_changes.settings.push((at, change));
        history.until(at);
        at += history.random.seconds(0.1, 60.0);
    }
}

/// Machines are made anew, and their nodes have the names of those before. Their clocks may be off.
pub(crate) fn names_reused(history: &mut Builder) {
    let (nodes, share) = (history.shoot().nodes.len(), history.random.pick(&[0.2, 0.5, 1.0]));
    let from = history.some_time();
    for replaced in 0..nodes {
        if !history.random.chance(share) {
            continue;
        }
        let terminating = from + history.random.seconds(0.0, 30.0);
        let stops = terminating + history.random.seconds(1.0, 10.0);
        let deleted = stops + history.random.seconds(0.0, 30.0);
        let created = deleted + history.random.seconds(1.0, 90.0);
        history.fact(replaced, terminating, FOREVER, NodeFact::MachineTerminating);
        let mut kubelet = KubeletModel::steady(history.random.next(), created + SECOND / 5);
        let skew = history.random.pick(&[0.0, 0.0, 100.0]);
        let skew = history.random.seconds(-skew, skew);
        kubelet.clock = NodeClock {
            steps: vec![(created, skew)],
        };
        let ready = created + history.random.seconds(0.1, 45.0);
        let old = &mut history.shoot().nodes[replaced];
        (old.kubelet.stops, old.deleted) = (stops, deleted);
        history.shoot().nodes.push(NodeScript {
            first_report: Some(ready),
            name_of: Some(replaced),
            ..NodeScript::steady(kubelet, created)
        });
        history.until(created);
    }
}
