//! Judges the verdicts on a shoot by what kube-controller-manager does on the same history.

use crate::absence::{Absent, Form, absence};
use crate::node_lifecycle_input::last_write;
use crate::random::{MILLISECOND, Micros, SECOND};
use crate::script::{ShootHistory, ShootScript};
use crate::timeline::FOREVER;

/// From a loss verdict until the dependants are down.
const SCALE_DOWN: Micros = 3 * SECOND;

/// By then kube-controller-manager has marked what it would ever mark: 40 s of grace, a successor, an outage under way.
const EVER: Micros = 300 * SECOND;

/// A verdict rests on a list that is no older than this: what a list shows that is older is no excuse.
const LIST_AGE: Micros = 3 * SECOND;

/// Nodes and machines that were listed this long ago are good enough to report a loss by: 1.25 renew intervals (`fresh`
/// in domain/probe_state.rs).
const NODES_KNOWN_FOR: Micros = 12_500 * MILLISECOND;

/// The scaling direction of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The nodes are cut off.
    Down,
    /// They are connected.
    Up,
    /// Whatever was true before.
    Hold,
}

/// A verdict as a consumer sees it.
#[derive(Debug, Clone)]
pub(crate) struct SeenVerdict {
    pub(crate) at: Micros,
    /// Until when renewals were written that the last list before it shows.
    pub(crate) listed: Micros,
    /// When that list was asked for: the verdict is about that moment.
    pub(crate) asked: Micros,
    pub(crate) direction: Direction,
    /// For people.
    pub(crate) outcome: String,
}

/// The judgement on a loss verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossJudgement {
    /// kube-controller-manager would never have marked enough nodes.
    False,
    /// It would have if a cut had not ended, and no renewal of these nodes had reached the API server between that end
    /// and the list on which the verdict rests: no observer can know. See [`ShootScript::frozen_as_seen_at`].
    HealedUnseen,
    /// It did.
    Right,
    /// It would have, but the network came back before it did.
    HealedInTime,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct JudgedLoss {
    pub(crate) at: Micros,
    pub(crate) judgement: LossJudgement,
    /// Since the last renewal that made it a loss.
    pub(crate) detection: Micros,
}

/// kube-controller-manager marked the threshold's share of nodes before the dependants were down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LateLoss {
    /// When it had marked them.
    pub(crate) marked: Micros,
    /// The verdict that came too late; none if none came.
    pub(crate) verdict: Option<Micros>,
}

/// The judgements on all verdicts of a shoot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Judgement {
    pub(crate) losses: Vec<JudgedLoss>,
    pub(crate) late: Vec<LateLoss>,
    /// The dependants are still down at the end although all nodes are connected.
    pub(crate) stuck: bool,
    /// When the nodes were called connected while too many of them were silent, or no list showed a lease.
    pub(crate) unfounded: Vec<Micros>,
}

impl Judgement {
    /// How many loss verdicts were judged like that.
    pub(crate) fn count(&self, of: LossJudgement) -> usize {
        let losses = self.losses.iter();
        losses.filter(|loss| loss.judgement == of).count()
    }

    pub(crate) fn is_false(&self) -> bool {
        self.count(LossJudgement::False) > 0
    }
}

/// Judges `verdicts`, in order, on a shoot.
pub(crate) fn judge(
    script: &ShootScript,
    history: &ShootHistory,
    verdicts: &[SeenVerdict],
    length: Micros,
) -> Judgement {
    let marks = marks(script, history, length);
    let losses = scale_downs(verdicts)
        .into_iter()
        .map(|verdict| judge_loss(script, history, &marks, verdict))
        .collect();
    // Where nobody takes part in an election, no kube-controller-manager leads.
    let late = { marks.iter() }
        .filter(|_| script.server.elections > 0)
        .filter_map(|marked| late(script, history, verdicts, *marked, length))
        .collect();
    Judgement {
        losses,
        late,
        stuck: is_down(verdicts, length) && is_connected(script, history, length),
        unfounded: { verdicts.iter() }
            .filter(|verdict| verdict.direction == Direction::Up && is_unfounded(script, history, verdict))
            .map(|verdict| verdict.at)
            .collect(),
    }
}

/// The verdicts on which dependants are scaled down. One that is repeated after others that hold does nothing: nothing
/// has come up. But the first may not have stood for long enough.
fn scale_downs(verdicts: &[SeenVerdict]) -> Vec<&SeenVerdict> {
    let (mut found, mut stood) = (Vec::new(), 0);
    let mut before: Option<&SeenVerdict> = None;
    for verdict in verdicts {
        let was_down = before.filter(|before| before.direction == Direction::Down);
        stood += was_down.map_or(0, |before| verdict.at - before.at);
        if verdict.direction == Direction::Up {
            stood = 0;
        }
        if verdict.direction == Direction::Down && was_down.is_none() && stood < SCALE_DOWN {
            found.push(verdict);
        }
        before = Some(verdict);
    }
    found
}

/// When the threshold's share of the candidates became Unknown.
fn marks(script: &ShootScript, history: &ShootHistory, length: Micros) -> Vec<Micros> {
    let changes = history.ready_changes.iter().flatten();
    let mut instants: Vec<_> = changes
        .map(|change| change.at)
        .filter(|at| (0..length).contains(at))
        .collect();
    instants.sort_unstable();
    instants.dedup();
    let (mut marks, mut marked) = (Vec::new(), false);
    for at in instants {
        let candidates = script.candidates(history, at);
        let required = script.required(candidates.len(), at);
        let reached = candidates.len() > 1 && history.unknown(&candidates, at) >= required;
        if reached && !marked {
            marks.push(at);
        }
        marked = reached;
    }
    marks
}

fn judge_loss(
    script: &ShootScript,
    history: &ShootHistory,
    marks: &[Micros],
    verdict: &SeenVerdict,
) -> JudgedLoss {
    let at = verdict.at;
    let candidates = script.candidates(history, at);
    // By the settings of the probe.
    let required = |candidates: usize| script.required(candidates, verdict.asked);
    let k = required(candidates.len());
    let mut renewed: Vec<_> = candidates
        .iter()
        .filter_map(|node| last_write(&history.nodes[*node].kubelet.writes, at))
        .map(|write| write.at)
        .collect();
    renewed.sort_unstable();
    let detection = renewed.get(k - 1).map_or(0, |kth| at - kth);
    let sets = script.candidates_between(history, at - NODES_KNOWN_FOR, at);
    let marks_enough = |frozen: ShootScript| {
        let frozen = frozen.play(at + EVER + script.longest_grace(), at);
        let marks = |candidates: &Vec<usize>| ever_marks(&frozen, candidates, required(candidates.len()), at);
        sets.iter().any(marks)
    };
    let was = history.unknown(&candidates, at) >= k
        || marks
            .iter()
            .any(|mark| (at..at + EVER + script.longest_grace()).contains(mark));
    let judgement = match marks_enough(script.frozen_at(at)) {
        true if was => LossJudgement::Right,
        true => LossJudgement::HealedInTime,
        false if marks_enough(script.frozen_as_seen_at(history, verdict.listed.max(at - LIST_AGE), at)) => {
            LossJudgement::HealedUnseen
        }
        false => LossJudgement::False,
    };
    JudgedLoss {
        at,
        judgement,
        detection,
    }
}

/// Returns true if `k` of the candidates are Unknown at some instant from `at` on.
fn ever_marks(history: &ShootHistory, candidates: &[usize], k: usize, at: Micros) -> bool {
    let changes = candidates.iter().flat_map(|node| &history.ready_changes[*node]);
    let instants = changes
        .map(|change| change.at)
        .filter(|change| *change >= at)
        .chain([at]);
    candidates.len() > 1 && { instants }.any(|instant| history.unknown(candidates, instant) >= k)
}

/// Returns true if the dependants are down at `at`: a loss verdict stood for the time that it takes, with or without
/// pauses, and no recovery came since.
fn is_down(verdicts: &[SeenVerdict], at: Micros) -> bool {
    let mut stood = 0;
    let ends = verdicts.iter().skip(1).map(|next| next.at).chain([FOREVER]);
    for (verdict, ends) in verdicts.iter().zip(ends).filter(|(verdict, _)| verdict.at <= at) {
        match verdict.direction {
            Direction::Down => stood += ends.min(at) - verdict.at,
            Direction::Up => stood = 0,
            Direction::Hold => {}
        }
    }
    stood >= SCALE_DOWN
}

/// A kubelet that has not renewed for the grace period and this long is no evidence of a connection.
const NO_EVIDENCE: Micros = 5 * SECOND;

/// A probe rests on the settings at its start, which may wait this long for a connection before the leases are asked
/// for.
const SETTINGS_KNOWN_FOR: Micros = 10 * SECOND;

/// Returns true if its list cannot show that the nodes were connected when it was asked for. A list that waits for its
/// answer also shows what was written meanwhile.
fn is_unfounded(script: &ShootScript, history: &ShootHistory, verdict: &SeenVerdict) -> bool {
    let &SeenVerdict { listed, asked, .. } = verdict;
    // Nodes and Machines are asked for after the leases.
    let sets = script.candidates_between(history, asked - NODES_KNOWN_FOR, verdict.at);
    let written = |node: &&usize| last_write(&history.nodes[**node].kubelet.writes, listed);
    let too_silent_by = |candidates: &Vec<usize>, settings: Micros| {
        let renewed_from = asked - script.grace_in_cluster(settings) - NO_EVIDENCE;
        let is_silent = |node: &&usize| written(node).is_none_or(|write| write.at < renewed_from);
        let silent = candidates.iter().filter(is_silent).count();
        candidates.len() > 1 && silent >= script.required(candidates.len(), settings)
    };
    let too_silent = |candidates: &Vec<usize>| {
        [asked - SETTINGS_KNOWN_FOR, asked]
            .into_iter()
            .all(|settings| too_silent_by(candidates, settings))
    };
    let gone = absence(&script.absences, Absent::Leases, listed);
    let none_shown = gone.is_some_and(|absence| !matches!(absence.form, Form::Partial(_)));
    let shown_none = |candidates: &Vec<usize>| candidates.len() > 1 && none_shown;
    { sets.iter() }.all(|candidates| too_silent(candidates) || shown_none(candidates))
}

fn late(
    script: &ShootScript,
    history: &ShootHistory,
    verdicts: &[SeenVerdict],
    marked: Micros,
    length: Micros,
) -> Option<LateLoss> {
    let is_restored =
        |verdict: &&SeenVerdict| verdict.direction == Direction::Up && is_down(verdicts, verdict.at - 1);
    let restored = { verdicts.iter() }.rfind(|verdict| verdict.at <= marked && is_restored(verdict));
    // One that has just been restored counts anew, and may mark the nodes later than one that was never scaled down.
    let marked = match restored.filter(|verdict| marked < verdict.at + script.longest_grace()) {
        Some(restored) => {
            let anew = script.restored_at(history, restored.at, length);
            marks(script, &anew, length).first().copied()?
        }
        None => marked,
    };
    if is_down(verdicts, marked) {
        return None;
    }
    let verdict = verdicts
        .iter()
        .find(|verdict| verdict.at > marked - SCALE_DOWN && verdict.direction == Direction::Down);
    Some(LateLoss {
        marked,
        verdict: verdict.map(|verdict| verdict.at),
    })
}

/// Returns true if all candidates have renewed for the last minute, so that no verdict is outstanding.
fn is_connected(script: &ShootScript, history: &ShootHistory, length: Micros) -> bool {
    let answers = !script
        .server
        .segments
        .iter()
        .any(|segment| segment.to > length - 60 * SECOND);
    let reached = !script.prober_cuts.iter().any(|cut| cut.to > length - 60 * SECOND);
    let renews = |node: &usize| {
        let writes = &history.nodes[*node].kubelet.writes;
        (1..=4).all(|i| {
            last_write(writes, length - i * 15 * SECOND)
                .is_some_and(|w| w.at > length - (i + 1) * 15 * SECOND)
        })
    };
    let absent = script
        .absences
        .iter()
        .any(|absence| absence.to > length - 60 * SECOND);
    // What keeps a lease from counting for a while does not end a loss.
    let stays = |node: &usize| {
        let facts = &script.nodes[*node].facts;
        script.nodes[*node].exists(length) && !facts.iter().any(|span| span.is_removal() && span.to > length)
    };
    let candidates: Vec<_> = (0..script.nodes.len()).filter(stays).collect();
    let silent = candidates.iter().filter(|node| !renews(node)).count();
    answers && reached && !absent && silent < script.required(candidates.len(), length)
}

/// The history that an unprotected shoot has.
pub(crate) fn unprotected(script: &ShootScript, length: Micros) -> ShootHistory {
    script.play(length, FOREVER)
}

#[cfg(test)]
mod tests;
