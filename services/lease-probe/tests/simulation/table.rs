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

const COLUMNS: [&str; 12] = [
    "class",
    "histories",
    "loss verdicts",
    "false",
    "late (of them never)",
    "healed in time",
    "healed unseen",
    "not restored",
    "unfounded",
    "detection p50",
    "p99",
    "max",
];

/// As Markdown.
pub(crate) fn markdown(table: &Table) -> String {
    let all = row("**all**", table.values().flatten());
    let rows = table.iter().map(|((_, name), judgements)| row(name, judgements));
    lines(COLUMNS.map(str::to_owned).into(), rows.chain([all]).collect())
}

/// Less than one in this many histories: then classes share a row of the page.
const RARE: usize = 50;

/// The same for docs/explanation/safety.md: classes in which everything went well share a row, those in which little
/// was late share another, and columns in which everything did are left out. Where kube-controller-manager may be
/// first, the reason stands below.
pub(crate) fn page(table: &Table, classes: &[HistoryClass]) -> String {
    let is_late = |judgement: &&Judgement| !judgement.late.is_empty();
    let is_wrong =
        |judgement: &Judgement| judgement.is_false() || judgement.stuck || !judgement.unfounded.is_empty();
    let mut reasons = Reasons::default();
    let mut rows = Vec::new();
    let (mut rare, mut rare_reasons) = (Vec::new(), Vec::new());
    let mut well = Vec::new();
    for (class @ (place, name), judgements) in table {
        let late = judgements.iter().filter(is_late).count();
        let is_all_right = !judgements.iter().any(is_wrong);
        if is_all_right && late == 0 {
            well.push(class);
            continue;
        }
        let reason = reasons.number(classes[*place].may_be_late);
        if is_all_right && late * RARE < judgements.len() {
            rare.push(class);
            rare_reasons.push(reason);
        } else {
            let mut cells = row(name, judgements);
            cells.push(reason);
            rows.push(cells);
        }
    }
    rare_reasons.sort_by_key(|reason| reason.parse::<usize>().ok());
    rare_reasons.dedup();
    let rare_name = format!("{} classes with less than 1 in {RARE} late", rare.len());
    let well_name = format!("{} more classes", well.len());
    let of = |classes: Vec<_>| classes.into_iter().flat_map(|class| &table[class]);
    for (mut cells, reason) in [
        (row(&rare_name, of(rare)), rare_reasons.join(", ")),
        (row(&well_name, of(well)), String::new()),
        (row("**all**", table.values().flatten()), String::new()),
    ] {
        cells.push(reason);
        rows.push(cells);
    }
    let mut columns: Vec<_> = COLUMNS
        .into_iter()
        .chain(["why late"])
        .map(str::to_owned)
        .collect();
    let mut empty = Vec::new();
    for column in (0..columns.len()).rev() {
        if rows.iter().all(|cells| cells[column] == "0") {
            empty.insert(0, columns.remove(column));
            rows.iter_mut().for_each(|cells| drop(cells.remove(column)));
        }
    }
    let none = match empty.is_empty() {
        true => String::new(),
        false => format!("0 in every class: {}.\n\n", empty.join(", ")),
    };
    format!("{none}{}\nWhy late:\n\n{}", lines(columns, rows), reasons.list())
}

/// How often a verdict was false, and why nobody can know, as Markdown. Each class has the same number of histories.
pub(crate) fn limits(table: &Table, classes: &[HistoryClass]) -> String {
    let mut reasons = Reasons::default();
    let rows = table.iter().map(|((place, name), judgements)| {
        let why = reasons.number(classes[*place].may_be_false);
        vec![(*name).to_owned(), falses(judgements).to_string(), why]
    });
    let rows: Vec<_> = rows.collect();
    let each = table.values().map(Vec::len).max().unwrap_or_default();
    let columns = ["class", "false", "why"].map(str::to_owned).into();
    format!(
        "Of {each} histories each:\n\n{}\nWhat cannot be known:\n\n{}",
        lines(columns, rows),
        reasons.list()
    )
}

/// Reasons that several classes share, by their numbers.
#[derive(Default)]
struct Reasons(Vec<&'static str>);

impl Reasons {
    fn number(&mut self, reason: Option<&'static str>) -> String {
        let Some(reason) = reason else {
            return String::new();
        };
        let known = self.0.iter().position(|known| *known == reason);
        let place = known.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        (place + 1).to_string()
    }

    fn list(&self) -> String {
        let numbered = self
            .0
            .iter()
            .zip(1..)
            .map(|(reason, n)| format!("{n}. {reason}\n"));
        numbered.collect()
    }
}

/// A table. All columns but the first one are numbers.
fn lines(columns: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let right = vec!["--:".to_owned(); columns.len() - 1];
    let marks = [vec!["---".to_owned()], right].concat();
    let mut text = String::new();
    for cells in [columns, marks].into_iter().chain(rows) {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

pub(crate) fn falses(judgements: &[Judgement]) -> usize {
    judgements
        .iter()
        .map(|judgement| judgement.count(LossJudgement::False))
        .sum()
}

fn row<'a>(name: &str, judgements: impl IntoIterator<Item = &'a Judgement>) -> Vec<String> {
    let judgements: Vec<_> = judgements.into_iter().collect();
    let sum = |count: fn(&Judgement) -> usize| -> usize { judgements.iter().copied().map(count).sum() };
    let judged = |as_what| {
        judgements
            .iter()
            .map(|judgement| judgement.count(as_what))
            .sum::<usize>()
    };
    // The first only: the others come after a pause in what the prober knows.
    let first = |judgement: &&Judgement| Some(judgement.losses.first()?.detection);
    let mut detections: Vec<_> = judgements.iter().filter_map(first).collect();
    detections.sort_unstable();
    let detection = |share: f64| match detections.len() {
        0 => "–".to_owned(),
        n => {
            let at = detections[((n - 1) as f64 * share).round() as usize];
            format!("{:.1} s", at as f64 / SECOND as f64)
        }
    };
    let late = sum(|judgement| judgement.late.len());
    let nevers = { judgements.iter() }
        .flat_map(|judgement| &judgement.late)
        .filter(|late| late.verdict.is_none())
        .count();
    vec![
        name.to_owned(),
        judgements.len().to_string(),
        sum(|judgement| judgement.losses.len()).to_string(),
        judged(LossJudgement::False).to_string(),
        match (late, nevers) {
            (_, 0) => late.to_string(),
            _ => format!("{late} ({nevers})"),
        },
        judged(LossJudgement::HealedInTime).to_string(),
        judged(LossJudgement::HealedUnseen).to_string(),
        sum(|judgement| usize::from(judgement.stuck)).to_string(),
        sum(|judgement| judgement.unfounded.len()).to_string(),
        detection(0.5),
        detection(0.99),
        detection(1.0),
    ]
}
