//! The results of the histories, by class.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::classes::HistoryClass;
use crate::judge::{Judgement, LossJudgement};
use crate::random::SECOND;

/// The judgements by the class's place among all classes, with its name: one for each shoot, of which a history has
/// several where they share a prober's limits.
pub(crate) type Table = BTreeMap<(usize, &'static str), Vec<Judgement>>;

/// Joins the tables of several threads.
pub(crate) fn merge(tables: impl IntoIterator<Item = Table>) -> Table {
    let mut all = Table::new();
    for (class, judgements) in tables.into_iter().flatten() {
        all.entry(class).or_default().extend(judgements);
    }
    all
}

const HEAD: &str = "| class | histories | loss verdicts | false | late (of them never) | healed in time \
                    | healed unseen | not restored | unfounded | detection p50 | p99 | max |\n\
                    | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n";

/// As Markdown.
pub(crate) fn markdown(table: &Table) -> String {
    let mut text = HEAD.to_owned();
    for ((_, name), judgements) in table {
        let _ = writeln!(text, "{}", row(name, judgements.iter()));
    }
    let _ = writeln!(text, "{}", row("**all**", table.values().flatten()));
    text
}

/// The same for docs/explanation/safety.md: classes in which everything went well share a row. Where
/// kube-controller-manager may be first, the reason stands with the class.
pub(crate) fn page(table: &Table, classes: &[HistoryClass]) -> String {
    let is_notable = |judgement: &Judgement| {
        judgement.is_false()
            || judgement.stuck
            || !judgement.late.is_empty()
            || !judgement.unfounded.is_empty()
    };
    let (notable, well): (Vec<_>, Vec<_>) =
        { table.iter() }.partition(|(_, judgements)| judgements.iter().any(is_notable));
    let mut text = HEAD
        .replace(" max |\n", " max | why late |\n")
        .replace("--: |\n", "--: | --- |\n");
    for ((place, name), judgements) in notable {
        let why = classes[*place].may_be_late.unwrap_or_default();
        let _ = writeln!(text, "{} {why} |", row(name, judgements.iter()));
    }
    let together = format!(
        "{} more classes, none false, late, unrestored or unfounded",
        well.len()
    );
    let judgements = well.iter().flat_map(|(_, judgements)| *judgements);
    let _ = writeln!(text, "{} |", row(&together, judgements));
    let _ = writeln!(text, "{} |", row("**all**", table.values().flatten()));
    text
}

/// How often a verdict was false, and why nobody can know, as Markdown.
pub(crate) fn limits(table: &Table, classes: &[HistoryClass]) -> String {
    let rows = table.iter().map(|((place, name), judgements)| {
        let why = classes[*place].may_be_false.unwrap_or_default();
        format!(
            "| {name} | {} | {} | {why} |",
            judgements.len(),
            falses(judgements)
        )
    });
    let rows: Vec<String> = rows.collect();
    format!(
        "| class | histories | false | what cannot be known |\n| --- | --: | --: | --- |\n{}\n",
        rows.join("\n")
    )
}

pub(crate) fn falses(judgements: &[Judgement]) -> usize {
    judgements
        .iter()
        .map(|judgement| judgement.count(LossJudgement::False))
        .sum()
}

fn row<'a>(name: &str, judgements: impl Iterator<Item = &'a Judgement> + Clone) -> String {
    let sum = |count: fn(&Judgement) -> usize| -> usize { judgements.clone().map(count).sum() };
    // The first only: the others come after a pause in what the prober knows.
    let first = |judgement: &Judgement| Some(judgement.losses.first()?.detection);
    let mut detections: Vec<_> = judgements.clone().filter_map(first).collect();
    detections.sort_unstable();
    let detection = |share: f64| match detections.len() {
        0 => "–".to_owned(),
        n => {
            let at = detections[((n - 1) as f64 * share).round() as usize];
            format!("{:.1} s", at as f64 / SECOND as f64)
        }
    };
    format!(
        "| {name} | {} | {} | {} | {} ({}) | {} | {} | {} | {} | {} | {} | {} |",
        judgements.clone().count(),
        sum(|judgement| judgement.losses.len()),
        sum(|judgement| judgement.count(LossJudgement::False)),
        sum(|judgement| judgement.late.len()),
        sum(|judgement| judgement
            .late
            .iter()
            .filter(|late| late.verdict.is_none())
            .count()),
        sum(|judgement| judgement.count(LossJudgement::HealedInTime)),
        sum(|judgement| judgement.count(LossJudgement::HealedUnseen)),
        sum(|judgement| usize::from(judgement.stuck)),
        sum(|judgement| judgement.unfounded.len()),
        detection(0.5),
        detection(0.99),
        detection(1.0),
    )
}
