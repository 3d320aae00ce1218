//! The results of the histories, by class.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::classes::HistoryClass;
use crate::judge::{Judgement, LossJudgement};
use crate::random::{Micros, SECOND};

/// One row.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassResult {
    /// Shoots, of which a history has several where they share a prober's limits.
    pub(crate) histories: usize,
    pub(crate) losses: usize,
    pub(crate) falses: usize,
    pub(crate) late: usize,
    pub(crate) never: usize,
    pub(crate) healed: usize,
    pub(crate) unseen: usize,
    pub(crate) stuck: usize,
    detections: Vec<Micros>,
}

/// By the class's place among all classes, with its name.
pub(crate) type Table = BTreeMap<(usize, &'static str), ClassResult>;

impl ClassResult {
    pub(crate) fn add(&mut self, judgement: &Judgement) {
        self.histories += 1;
        self.losses += judgement.losses.len();
        for loss in &judgement.losses {
            match loss.judgement {
                LossJudgement::False => self.falses += 1,
                LossJudgement::HealedInTime => self.healed += 1,
                LossJudgement::HealedUnseen => self.unseen += 1,
                LossJudgement::Right => {}
            }
        }
        self.late += judgement.late.len();
        self.never += judgement
            .late
            .iter()
            .filter(|late| late.verdict.is_none())
            .count();
        self.stuck += usize::from(judgement.stuck);
        // The first only: the others come after a pause in what the prober knows.
        self.detections
            .extend(judgement.losses.first().map(|loss| loss.detection));
    }

    fn merge(&mut self, other: Self) {
        self.histories += other.histories;
        self.losses += other.losses;
        self.falses += other.falses;
        self.late += other.late;
        self.never += other.never;
        self.healed += other.healed;
        self.unseen += other.unseen;
        self.stuck += other.stuck;
        self.detections.extend(other.detections);
    }

    fn detection(&mut self, share: f64) -> String {
        if self.detections.is_empty() {
            return "–".to_owned();
        }
        self.detections.sort_unstable();
        let last = self.detections.len() - 1;
        let at = self.detections[(last as f64 * share).round() as usize];
        format!("{:.1} s", at as f64 / SECOND as f64)
    }
}

/// Joins the tables of several threads.
pub(crate) fn merge(tables: impl IntoIterator<Item = Table>) -> Table {
    let mut all = Table::new();
    for table in tables {
        for (class, result) in table {
            all.entry(class).or_default().merge(result);
        }
    }
    all
}

/// As Markdown.
pub(crate) fn markdown(table: &Table) -> String {
    let mut text =
        "| class | histories | loss verdicts | false | late (of them never) | healed in time | healed \
                    unseen | not restored | detection p50 | p99 | max |\n\
                    | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n"
            .to_owned();
    let mut total = ClassResult::default();
    for ((_, name), result) in table {
        let mut result = result.clone();
        let _ = writeln!(text, "{}", row(name, &mut result));
        total.merge(result);
    }
    let _ = writeln!(text, "{}", row("**all**", &mut total));
    text
}

/// Why kube-controller-manager may be first, by class.
pub(crate) fn reasons(classes: &[HistoryClass]) -> String {
    let reason = |class: &HistoryClass| Some(format!("| {} | {} |", class.name, class.may_be_late?));
    let rows: Vec<String> = classes.iter().filter_map(reason).collect();
    format!(
        "| class | why kube-controller-manager may be first |\n| --- | --- |\n{}\n",
        rows.join("\n")
    )
}

/// How often a verdict was false, and why nobody can know, as Markdown.
pub(crate) fn limits(table: &Table, classes: &[HistoryClass]) -> String {
    let rows = table.iter().map(|((place, name), result)| {
        let why = classes[*place].may_be_false.unwrap_or_default();
        format!("| {name} | {} | {} | {why} |", result.histories, result.falses)
    });
    let rows: Vec<String> = rows.collect();
    format!(
        "| class | histories | false | what cannot be known |\n| --- | --: | --: | --- |\n{}\n",
        rows.join("\n")
    )
}

fn row(name: &str, result: &mut ClassResult) -> String {
    let (p50, p99, max) = (
        result.detection(0.5),
        result.detection(0.99),
        result.detection(1.0),
    );
    let ClassResult {
        histories,
        losses,
        falses,
        late,
        never,
        healed,
        unseen,
        stuck,
        ..
    } = result;
    format!(
        "| {name} | {histories} | {losses} | {falses} | {late} ({never}) | {healed} | {unseen} | {stuck} | {p50} | \
         {p99} | {max} |"
    )
}
