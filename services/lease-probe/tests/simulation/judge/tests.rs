use super::*;
use crate::input_changes::SettingChange;
use crate::kubelet::KubeletModel;
use crate::node_lifecycle_input::TimeSpan;
use crate::script::{NodeScript, RUN_UP};
use crate::timeline::{Behaviour, server};

const LENGTH: Micros = 300 * SECOND;

fn script(cut_of: impl Fn(usize) -> Option<(i64, i64)>, segments: &[(i64, i64, Behaviour)]) -> ShootScript {
    let node = |i: usize| {
        let kubelet = KubeletModel::steady(i as u64, RUN_UP + i as i64 * SECOND);
        let cut = |(from, to)| TimeSpan::new(from * SECOND, to * SECOND);
        NodeScript {
            cuts: cut_of(i).map(cut).into_iter().collect(),
            ..NodeScript::steady(kubelet, RUN_UP)
        }
    };
    ShootScript {
        server: server(segments),
        nodes: (0..5).map(node).collect(),
        prober_cuts: vec![],
        external_cuts: None,
        grace: 40 * SECOND,
        absences: vec![],
        input_changes: crate::input_changes::InputChanges::default(),
    }
}

fn judged(script: &ShootScript, verdicts: &[(i64, Direction)]) -> Judgement {
    let verdict = |(at, direction): &(i64, Direction)| SeenVerdict {
        at: at * SECOND,
        listed: at * SECOND,
        asked: at * SECOND,
        direction: *direction,
        outcome: String::new(),
    };
    let verdicts: Vec<_> = verdicts.iter().map(verdict).collect();
    judge(script, &unprotected(script, LENGTH), &verdicts, LENGTH)
}

fn losses(judgement: &Judgement) -> Vec<LossJudgement> {
    judgement.losses.iter().map(|loss| loss.judgement).collect()
}

use Direction::{Down, Hold, Up};

#[test]
fn a_verdict_on_a_healthy_shoot_is_false() {
    let found = judged(&script(|_| None, &[]), &[(0, Hold), (5, Up), (100, Down)]);
    assert_eq!(losses(&found), [LossJudgement::False]);
    assert!(found.stuck && found.late.is_empty());
}

#[test]
fn a_verdict_on_a_loss_is_right_and_on_time_three_seconds_before_the_marks() {
    let lost = script(|i| (i < 3).then_some((100, 1_000)), &[]);
    let found = judged(&lost, &[(5, Up), (130, Down)]);
    assert_eq!(losses(&found), [LossJudgement::Right]);
    assert!(found.late.is_empty() && !found.stuck, "{found:?}");
    assert!((30 * SECOND..40 * SECOND).contains(&found.losses[0].detection));
    let late = judged(&lost, &[(5, Up), (145, Down)]);
    assert_eq!(late.late.len(), 1);
    let never = judged(&lost, &[(5, Up)]);
    assert!(matches!(never.late[..], [LateLoss { verdict: None, .. }]));
}

#[test]
fn less_than_the_threshold_is_no_loss() {
    let found = judged(
        &script(|i| (i < 2).then_some((100, 1_000)), &[]),
        &[(5, Up), (130, Down)],
    );
    assert_eq!(losses(&found), [LossJudgement::False]);
    assert!(found.late.is_empty());
}

#[test]
fn a_network_that_comes_back_heals_in_time() {
    let healed = script(|_| Some((100, 132)), &[]);
    let found = judged(&healed, &[(5, Up), (131, Down), (145, Up)]);
    assert_eq!(losses(&found), [LossJudgement::HealedInTime]);
    assert!(!found.stuck);
    // Just back: no kubelet has renewed.
    let back = script(|_| Some((100, 131)), &[]);
    assert_eq!(
        losses(&judged(&back, &[(5, Up), (131, Down)])),
        [LossJudgement::HealedUnseen]
    );
    // But it is wrong once they have.
    assert_eq!(
        losses(&judged(&healed, &[(5, Up), (150, Down)])),
        [LossJudgement::False]
    );
}

/// Where the API server was away for most of the cut, the silence of the nodes is no evidence of the cut.
#[test]
fn a_cut_that_healed_in_an_outage_was_real_only_if_the_server_served_meanwhile() {
    let cut_from = |from: i64| {
        let outage = (115, 139, Behaviour::Hangs);
        losses(&judged(&script(|_| Some((from, 120)), &[outage]), &[(139, Down)]))
    };
    assert_eq!(cut_from(108), [LossJudgement::False]);
    assert_eq!(cut_from(95), [LossJudgement::HealedUnseen]);
}

#[test]
fn an_outage_of_the_server_is_no_loss() {
    let outage = (100, 136, Behaviour::Hangs);
    let found = judged(&script(|_| None, &[outage]), &[(5, Up), (137, Down)]);
    assert_eq!(losses(&found), [LossJudgement::False]);
}

/// A kube-controller-manager that was scaled down knows nothing when it is back: it has the whole grace period to see
/// renewals, and marks the nodes if none come.
#[test]
fn a_restored_kube_controller_manager_counts_anew() {
    let cut_until = |to: i64| script(|_| Some((100, to)), &[]);
    let late = |to: i64, verdicts: &[(i64, Direction)]| judged(&cut_until(to), verdicts).late.len();
    // All last renewals are from 90 s to 100 s, so one that was never scaled down marks the nodes by 145 s.
    assert_eq!(late(150, &[(5, Up)]), 1);
    assert_eq!(
        late(150, &[(5, Up), (130, Down), (134, Up)]),
        0,
        "all renew by 174 s"
    );
    assert_eq!(
        late(1_000, &[(5, Up), (130, Down), (134, Up)]),
        1,
        "nobody renews"
    );
    assert_eq!(late(1_000, &[(5, Up), (130, Down), (134, Up), (165, Down)]), 0);
    assert_eq!(
        late(150, &[(5, Up), (130, Down), (132, Up)]),
        1,
        "it was not down yet"
    );
}

/// A Hold verdict is neither a new loss nor a recovery.
#[test]
fn a_loss_stands_while_nothing_is_known() {
    let lost = script(|i| (i < 3).then_some((100, 1_000)), &[]);
    let found = judged(&lost, &[(5, Up), (130, Down), (135, Hold), (170, Down)]);
    assert_eq!(losses(&found), [LossJudgement::Right]);
    assert!(found.late.is_empty());
    let interrupted = judged(
        &lost,
        &[(130, Down), (132, Hold), (170, Down), (173, Hold), (176, Down)],
    );
    assert_eq!(
        losses(&interrupted),
        [LossJudgement::Right; 2],
        "until all are down"
    );
    let restored = judged(&lost, &[(5, Up), (130, Down), (135, Up)]);
    assert_eq!(restored.late.len(), 1);
}

/// A probe judges by the settings at its start, and its list may be asked for up to 10 s later.
#[test]
fn health_is_judged_by_the_settings_of_the_probes_start() {
    let mut lost = script(|i| (i < 3).then_some((100, 1_000)), &[]);
    let unfounded = |script: &ShootScript, up: i64| judged(script, &[(up, Up)]).unfounded;
    assert_eq!(unfounded(&lost, 165), [165 * SECOND], "3 of 5 are silent");
    lost.input_changes.settings = vec![
        (RUN_UP, SettingChange::Fraction(80)),
        (160 * SECOND, SettingChange::Fraction(60)),
    ];
    assert!(unfounded(&lost, 165).is_empty(), "4 would have to be");
    assert_eq!(unfounded(&lost, 171), [171 * SECOND]);
}

/// A node counts from its first renewal on, not only from the next change of another one.
#[test]
fn health_may_rest_on_a_node_that_has_just_joined() {
    let mut lost = script(|i| (i < 3).then_some((100, 1_000)), &[]);
    lost.nodes[3].deleted = 158 * SECOND;
    assert_eq!(judged(&lost, &[(160, Up)]).unfounded, [160 * SECOND]);
    let joins = KubeletModel::steady(5, 150 * SECOND);
    lost.nodes.push(NodeScript::steady(joins, 149 * SECOND));
    let found = judged(&lost, &[(160, Up)]);
    assert!(found.unfounded.is_empty(), "until 158 s, 3 of 6 were silent");
    assert_eq!(judged(&lost, &[(171, Up)]).unfounded, [171 * SECOND]);
}
