//! Describes a history for people.

use crate::judge::{Judgement, LossJudgement};
use crate::node_lifecycle_input::TimeSpan;
use crate::random::{Micros, SECOND, seconds};
use crate::script::{FactSpan, History, ShootHistory, ShootScript};
use crate::timeline::FOREVER;
use crate::virtual_time::ProbedShoot;

/// See [`is_near`].
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
        let (history, script, judgement) = (self.history, self.script, self.judgement);
        let mut lines = vec![format!(
            "=== CLASS='{}' SEED={}: interval {} s, {} nodes, {} s, grace {} s, {} elections, HTTP/{}",
            history.class,
            history.seed,
            history.interval / SECOND,
            script.nodes.len(),
            history.length / SECOND,
            script.grace / SECOND,
            script.server.elections,
            if script.server.speaks_http2 { "2" } else { "1.1" },
        )];
        let spans = |what: &'static str, spans: &[TimeSpan]| -> Vec<String> {
            let line = |it: &TimeSpan| format!("{what} {}", span(it.from, it.to));
            spans.iter().map(line).collect()
        };
        let external_cuts = script.external_cuts.as_deref().unwrap_or_default();
        lines.extend(spans("prober", &history.probers));
        lines.extend(spans("prober cut off", &script.prober_cuts));
        lines.extend(spans("prober stopped", &history.stops));
        lines.extend(spans("external endpoint cut off", external_cuts));
        lines.extend({ history.second.iter() }.map(|second| format!("second witness B: {second:?}")));
        let faults = script.server.segments.iter();
        lines.extend(
            faults.map(|fault| format!("server {}: {:?}", span(fault.from, fault.to), fault.behaviour)),
        );
        let absences = script.absences.iter();
        lines.extend(
            absences.map(|it| format!("{:?} absent {}: {:?}", it.absent, span(it.from, it.to), it.form)),
        );
        lines.push(format!(
            "other inputs, in microseconds: {:?}",
            script.input_changes
        ));
        let instants = self.instants();
        lines.extend(self.nodes(instants[0]));
        lines.extend(spans("kube-controller-manager leads", &self.happened.terms));
        lines.extend({ judgement.losses.iter() }.map(|loss| {
            let (at, detection) = (seconds(loss.at), seconds(loss.detection));
            format!(
                "LOSS VERDICT at {at}: {:?}, {detection} s after the last renewal that counted",
                loss.judgement
            )
        }));
        lines.extend({ judgement.late.iter() }.map(|late| {
            let verdict = late.verdict.map_or("never".to_owned(), seconds);
            format!(
                "LATE: kube-controller-manager marked the share at {}, verdict {verdict}",
                seconds(late.marked)
            )
        }));
        let unfounded = judgement.unfounded.iter();
        lines.extend(unfounded.map(|at| format!("CONNECTED WITHOUT EVIDENCE at {}", seconds(*at))));
        if judgement.stuck {
            lines.push("NOT RESTORED at the end".to_owned());
        }
        lines.extend(self.probes(&instants));
        lines.join("\n")
    }

    /// The instants in question; the end of the history if there are none.
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

    /// The nodes at an instant, and a line for each of them.
    fn nodes(&self, at: Micros) -> Vec<String> {
        let candidates = self.script.candidates(self.happened, at);
        let mut lines = vec![format!(
            "at {}: {} candidates, {} are a loss; {} are Unknown",
            seconds(at),
            candidates.len(),
            self.script.required(candidates.len(), at),
            self.happened.unknown(&candidates, at)
        )];
        for (i, (node, happened)) in self.script.nodes.iter().zip(&self.happened.nodes).enumerate() {
            let writes = happened.kubelet.writes.iter().map(|write| write.at);
            let near = writes.filter(|write| is_near(*write, at)).map(seconds);
            let mut line = format!("node {i}: renewed at {}", near.collect::<Vec<_>>().join(" "));
            for TimeSpan { from, to } in &node.cuts {
                line += &format!("; cut off {}", span(*from, *to));
            }
            let steps = node.kubelet.clock.steps.iter();
            for (from, skew) in steps.filter(|(_, skew)| skew.abs() > SECOND) {
                line += &format!("; clock off by {} from {}", seconds(*skew), seconds(*from));
            }
            for FactSpan { from, to, fact } in &node.facts {
                line += &format!("; {fact:?} {}", span(*from, *to));
            }
            let lives = [node.created.max(0), node.kubelet.stops, node.deleted];
            if lives != [0, FOREVER, FOREVER] {
                line += &format!("; created, stops and deleted at {}", lives.map(until).join(", "));
            }
            for change in &self.happened.ready_changes[i] {
                line += &format!("; Unknown {} at {}", change.unknown, seconds(change.at));
            }
            lines.push(line);
        }
        lines
    }

    /// A line for the requests of each probe around the instants, and one for the verdict.
    fn probes(&self, instants: &[Micros]) -> Vec<String> {
        let near = |at: Micros| instants.iter().any(|instant| is_near(at, *instant));
        let traffic = { self.probed.traffic.iter() }.map(|(at, what)| (*at, &**what, false));
        let verdicts = { self.probed.verdicts.iter() }.map(|verdict| (verdict.at, &*verdict.outcome, true));
        let mut events: Vec<_> = traffic.chain(verdicts).filter(|(at, ..)| near(*at)).collect();
        events.sort_by_key(|(at, ..)| *at);
        let (mut lines, mut line, mut before) = (Vec::new(), String::new(), "");
        for (at, what, is_verdict) in events {
            if line.is_empty() {
                line = format!("{:>9}", seconds(at));
            }
            if is_verdict {
                let verdict = if what == before { "the same" } else { what };
                lines.push(std::mem::take(&mut line));
                lines.push(format!("{:>9}   VERDICT {verdict}", seconds(at)));
                before = what;
            } else {
                line += &format!(" {what};");
            }
        }
        lines.push(line);
        lines
    }
}

/// A description starts [`AROUND`] before an instant in question and ends half of it after.
fn is_near(at: Micros, instant: Micros) -> bool {
    (instant - AROUND..instant + AROUND / 2).contains(&at)
}
