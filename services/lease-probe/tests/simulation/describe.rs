//! Describes a history for people.

use std::fmt::Write;

use crate::judge::{Judgement, LossJudgement};
use crate::node_lifecycle_input::LeadershipTerm;
use crate::random::{Micros, SECOND, seconds};
use crate::script::{FactSpan, History, ProberRun, ShootHistory, ShootScript, required};
use crate::timeline::{FOREVER, PacketLoss, Segment};
use crate::virtual_time::ProbedShoot;

/// A description starts this long before a verdict in question and ends half of it after.
const AROUND: Micros = 60 * SECOND;

/// One shoot of a history.
pub(crate) struct Account<'a> {
    pub(crate) history: &'a History,
    pub(crate) script: &'a ShootScript,
    pub(crate) happened: &'a ShootHistory,
    pub(crate) probed: &'a ProbedShoot,
    pub(crate) judgement: &'a Judgement,
}

fn until(at: Micros) -> String {
    if at >= FOREVER {
        "the end".to_owned()
    } else {
        seconds(at)
    }
}

fn span(from: Micros, to: Micros) -> String {
    format!("from {} to {}", seconds(from), until(to))
}

impl Account<'_> {
    /// Everything around the verdicts that are false or late.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let History {
            class,
            seed,
            interval,
            length,
            ..
        } = self.history;
        let _ = writeln!(
            text,
            "=== CLASS='{class}' SEED={seed}: interval {} s, {} nodes, {} s, grace {} s, {} elections, HTTP/{}",
            interval / SECOND,
            self.script.nodes.len(),
            length / SECOND,
            self.script.grace / SECOND,
            self.script.server.elections,
            if self.script.server.speaks_http2 {
                "2"
            } else {
                "1.1"
            },
        );
        for ProberRun { from, to } in &self.history.probers {
            let _ = writeln!(text, "prober {}", span(*from, *to));
        }
        if let Some(second) = &self.history.second {
            let _ = writeln!(text, "second witness B: {second:?}");
        }
        for Segment { from, to, behaviour } in &self.script.server.segments {
            let _ = writeln!(text, "server {}: {behaviour:?}", span(*from, *to));
        }
        for (what, cuts) in [
            ("prober", Some(&self.script.prober_cuts)),
            ("external endpoint", self.script.external_cuts.as_ref()),
        ] {
            for PacketLoss { from, to } in cuts.into_iter().flatten() {
                let _ = writeln!(text, "{what} cut off {}", span(*from, *to));
            }
        }
        let instants = self.instants();
        self.describe_nodes(&mut text, &instants);
        for LeadershipTerm { from, to } in &self.happened.terms {
            let _ = writeln!(text, "kube-controller-manager leads {}", span(*from, *to));
        }
        for loss in &self.judgement.losses {
            let _ = writeln!(
                text,
                "LOSS VERDICT at {}: {:?}, {} s after the last renewal that counted",
                seconds(loss.at),
                loss.judgement,
                seconds(loss.detection)
            );
        }
        for late in &self.judgement.late {
            let _ = writeln!(
                text,
                "LATE: kube-controller-manager marked the share at {}, verdict {}",
                seconds(late.marked),
                late.verdict.map_or("never".to_owned(), seconds)
            );
        }
        for at in &self.judgement.unfounded {
            let _ = writeln!(text, "CONNECTED WITHOUT EVIDENCE at {}", seconds(*at));
        }
        for absence in &self.script.absences {
            let _ = writeln!(
                text,
                "{:?} absent {}: {:?}",
                absence.absent,
                span(absence.from, absence.to),
                absence.form
            );
        }
        if self.judgement.stuck {
            let _ = writeln!(text, "NOT RESTORED at the end");
        }
        self.describe_probes(&mut text, &instants);
        text
    }

    /// The instants in question.
    fn instants(&self) -> Vec<Micros> {
        let losses = self.judgement.losses.iter();
        let falses = losses.filter(|loss| loss.judgement == LossJudgement::False);
        let late = self.judgement.late.iter().map(|late| late.marked);
        let unfounded = self.judgement.unfounded.iter().copied();
        let mut instants: Vec<_> = falses.map(|loss| loss.at).chain(late).chain(unfounded).collect();
        if self.judgement.stuck || instants.is_empty() {
            instants.push(self.history.length);
        }
        instants
    }

    fn describe_nodes(&self, text: &mut String, instants: &[Micros]) {
        let Some(first) = instants.first().copied() else {
            return;
        };
        let candidates = self.script.candidates(self.happened, first);
        let _ = writeln!(
            text,
            "at {}: {} candidates, {} are a loss; {} are Unknown",
            seconds(first),
            candidates.len(),
            required(candidates.len()),
            self.happened.unknown(&candidates, first)
        );
        for (i, (node, happened)) in self.script.nodes.iter().zip(&self.happened.nodes).enumerate() {
            let near = |at: &Micros| (first - AROUND..first + AROUND / 2).contains(at);
            let writes = happened.kubelet.writes.iter().map(|write| write.at);
            let writes: Vec<_> = writes.filter(near).map(seconds).collect();
            let _ = write!(text, "node {i}: renewed at {}", writes.join(" "));
            for PacketLoss { from, to } in &node.cuts {
                let _ = write!(text, "; cut off {}", span(*from, *to));
            }
            let steps = node.kubelet.clock.steps.iter();
            for (from, skew) in steps.filter(|(_, skew)| skew.abs() > SECOND) {
                let _ = write!(text, "; clock off by {} from {}", seconds(*skew), seconds(*from));
            }
            for FactSpan { from, to, fact } in &node.facts {
                let _ = write!(text, "; {fact:?} {}", span(*from, *to));
            }
            if node.kubelet.stops < FOREVER || node.deleted < FOREVER {
                let _ = write!(
                    text,
                    "; stops at {}, deleted at {}",
                    until(node.kubelet.stops),
                    until(node.deleted)
                );
            }
            if node.created > 0 {
                let _ = write!(text, "; created at {}", seconds(node.created));
            }
            for change in &self.happened.ready_changes[i] {
                let _ = write!(text, "; Unknown {} at {}", change.unknown, seconds(change.at));
            }
            text.push('\n');
        }
    }

    fn describe_probes(&self, text: &mut String, instants: &[Micros]) {
        let near = |at: Micros| {
            instants
                .iter()
                .any(|instant| (instant - AROUND..instant + AROUND / 2).contains(&at))
        };
        let ProbedShoot {
            traffic, verdicts, ..
        } = self.probed;
        let traffic = traffic.iter().map(|(at, what)| (*at, &**what, false));
        let verdicts = verdicts
            .iter()
            .map(|verdict| (verdict.at, &*verdict.outcome, true));
        let mut events: Vec<_> = traffic.chain(verdicts).filter(|(at, ..)| near(*at)).collect();
        events.sort_by_key(|(at, ..)| *at);
        // One line for a probe: its requests, and what it came to.
        let (mut line, mut before) = (String::new(), "");
        for (at, what, is_verdict) in events {
            if line.is_empty() {
                line = format!("{:>9}", seconds(at));
            }
            if !is_verdict {
                let _ = write!(line, " {what};");
                continue;
            }
            let verdict = if what == before { "the same" } else { what };
            let _ = writeln!(text, "{line}\n{:>9}   VERDICT {verdict}", seconds(at));
            (line, before) = (String::new(), what);
        }
        let _ = writeln!(text, "{line}");
    }
}
