//! A record that is as it should be, and one for each rule that is broken.

use super::*;

/// Seconds, dependant or other fact.
struct TimelineBuilder(Vec<TimelineEntry>, u64);

fn expected() -> Expectation {
    Expectation {
        counts: vec![(KCM, 1), (MCM, 2)],
        nodes: Some(NodeTimes {
            grace: Duration::from_secs(16),
            renew_interval: Duration::from_secs(4),
            threshold: 0.6,
        }),
        restored: true,
        verdicts: true,
    }
}

impl TimelineBuilder {
    fn new() -> Self {
        let mut story = Self(Vec::new(), 0);
        story.seen(0, KCM, (1, 1), None, false);
        story.seen(0, MCM, (2, 2), None, false);
        story.cluster(0, None);
        story
    }

    fn fact(&mut self, at: i64, fact: Fact) {
        let at = Timestamp::UNIX_EPOCH
            .checked_add(SignedDuration::from_secs(at))
            .unwrap();
        self.0.push(TimelineEntry { at, fact });
    }

    fn seen(&mut self, at: i64, name: &str, (wanted, ready): (i32, i32), recorded: Option<&str>, held: bool) {
        self.1 += 1;
        let dependant = Dependant {
            version: self.1,
            name: name.to_owned(),
            wanted,
            ready,
            recorded: recorded.map(str::to_owned),
            held,
            ignored: false,
        };
        self.fact(at, Fact::Dependant(dependant));
    }

    fn cluster(&mut self, at: i64, forbids: Option<&'static str>) {
        self.1 += 1;
        let version = self.1;
        self.fact(at, Fact::Cluster { version, forbids });
    }

    fn cut(&mut self, at: i64, cut: usize) {
        self.fact(at, Fact::Cut { cut, of: 5 });
    }

    fn lost(&mut self) {
        self.cut(10, 5);
        self.fact(22, Fact::Verdict(Outcome::LeasesExpired));
    }

    fn down(&mut self) {
        self.seen(22, MCM, (2, 2), Some("2"), true);
        self.seen(22, MCM, (0, 2), Some("2"), true);
        self.seen(23, MCM, (0, 0), Some("2"), true);
        self.seen(23, KCM, (1, 1), Some("1"), true);
        self.seen(23, KCM, (0, 1), Some("1"), true);
        self.seen(24, KCM, (0, 0), Some("1"), true);
    }

    fn up(&mut self) {
        self.cut(40, 0);
        self.fact(44, Fact::Verdict(Outcome::Healthy));
        self.seen(44, KCM, (1, 0), Some("1"), true);
        self.seen(45, KCM, (1, 1), Some("1"), false);
        self.seen(45, MCM, (2, 0), Some("2"), true);
        self.seen(46, MCM, (2, 2), Some("2"), false);
    }

    fn violations(&self) -> Vec<Violation> {
        violations("shoot", &self.0, &expected())
    }

    fn breaks(&self, invariant: Invariant) {
        let violations = self.violations();
        let all = violations
            .iter()
            .all(|violation| violation.invariant == invariant);
        assert!(!violations.is_empty() && all, "{violations:#?}");
    }
}

#[test]
fn a_loss_and_a_recovery_as_they_should_be() {
    let mut story = TimelineBuilder::new();
    story.lost();
    story.down();
    story.up();
    assert_eq!(story.violations(), []);
}

#[test]
fn down_although_the_nodes_were_there() {
    let mut story = TimelineBuilder::new();
    story.cut(10, 2);
    story.fact(22, Fact::Verdict(Outcome::LeasesExpired));
    story.down();
    story.up();
    story.breaks(Invariant::S1);
}

#[test]
fn down_too_early_and_down_too_late() {
    let mut story = TimelineBuilder::new();
    story.cut(19, 5);
    story.fact(22, Fact::Verdict(Outcome::LeasesExpired));
    story.down();
    story.up();
    story.breaks(Invariant::S1);

    let mut story = TimelineBuilder::new();
    story.cut(1, 5);
    story.cut(5, 0);
    story.fact(22, Fact::Verdict(Outcome::LeasesExpired));
    story.down();
    story.up();
    story.breaks(Invariant::S1);
}

#[test]
fn down_on_a_verdict_that_says_nothing_of_a_loss() {
    for outcome in [
        Outcome::Throttled,
        Outcome::ApiServerUnreachable,
        Outcome::Inconclusive,
    ] {
        let mut story = TimelineBuilder::new();
        story.cut(10, 5);
        story.fact(12, Fact::Verdict(outcome));
        story.down();
        story.up();
        story.breaks(Invariant::S2);
    }
}

/// The test lists again only when the nodes have been back for a while.
#[test]
fn a_write_in_a_loss_that_is_seen_after_it_is_in_time() {
    let seen_late = |arrival: Option<i64>| {
        let mut story = TimelineBuilder::new();
        story.lost();
        story.cut(24, 0);
        story.fact(26, Fact::Verdict(Outcome::Healthy));
        if let Some(arrival) = arrival {
            let name = MCM.to_owned();
            story.fact(arrival, Fact::Arrival { name, against: 2 });
        }
        story.seen(60, MCM, (0, 0), Some("2"), true);
        story.seen(61, MCM, (2, 2), Some("2"), false);
        let violations = story.violations().into_iter();
        violations.map(|found| found.invariant).collect::<Vec<_>>()
    };
    assert_eq!(seen_late(Some(22)), []);
    for arrival in [None, Some(60)] {
        assert_eq!(seen_late(arrival), [Invariant::S2, Invariant::S1]);
    }
}

#[test]
fn levels_out_of_order() {
    let mut story = TimelineBuilder::new();
    story.lost();
    story.seen(22, KCM, (1, 1), Some("1"), true);
    story.seen(22, KCM, (0, 1), Some("1"), true);
    story.seen(22, KCM, (0, 0), Some("1"), true);
    story.seen(23, KCM, (1, 1), Some("1"), false);
    story.breaks(Invariant::S3);

    let mut story = TimelineBuilder::new();
    story.lost();
    story.down();
    story.seen(44, MCM, (2, 0), Some("2"), true);
    story.seen(46, MCM, (2, 2), Some("2"), false);
    story.seen(46, KCM, (1, 0), Some("1"), true);
    story.seen(46, KCM, (1, 1), Some("1"), false);
    story.breaks(Invariant::S3);
}

#[test]
fn a_write_that_was_under_way_may_be_overtaken() {
    let overtaken = |arrivals: &[i64]| {
        let mut story = TimelineBuilder::new();
        story.lost();
        story.down();
        story.cut(40, 0);
        story.fact(44, Fact::Verdict(Outcome::Healthy));
        story.seen(44, MCM, (0, 0), Some("2"), true);
        let arrival = Fact::Arrival {
            name: MCM.to_owned(),
            against: story.1,
        };
        for at in arrivals {
            story.fact(*at, arrival.clone());
        }
        story.seen(44, KCM, (1, 1), Some("1"), false);
        story.seen(46, KCM, (0, 0), Some("1"), true);
        story.seen(47, MCM, (2, 2), Some("2"), true);
        let violations = story.violations().into_iter();
        violations
            .filter(|violation| violation.invariant == Invariant::S3)
            .count()
    };
    assert_eq!(overtaken(&[45]), 0);
    assert_eq!(overtaken(&[47]), 1);
    // The first changed nothing.
    assert_eq!(overtaken(&[45, 47]), 1);
}

#[test]
fn written_to_while_it_hibernates() {
    let mut story = TimelineBuilder::new();
    story.lost();
    story.cluster(12, Some("hibernating"));
    story.down();
    story.cluster(41, None);
    story.up();
    story.breaks(Invariant::S4);
}

#[test]
fn an_operator_may_do_what_the_watchdog_may_not() {
    let mut story = TimelineBuilder::new();
    story.cluster(12, Some("hibernating"));
    story.seen(22, KCM, (0, 1), None, false);
    let version = story.1;
    story.fact(22, Fact::Operator(version));
    story.seen(23, KCM, (1, 1), None, false);
    let version = story.1;
    story.fact(23, Fact::Operator(version));
    assert_eq!(story.violations(), []);
}

#[test]
fn counts_that_are_lost() {
    let mut story = TimelineBuilder::new();
    story.lost();
    story.down();
    story.breaks(Invariant::S6);

    let mut story = TimelineBuilder::new();
    story.lost();
    story.down();
    story.cut(40, 0);
    story.seen(44, KCM, (1, 0), Some("1"), true);
    story.seen(45, KCM, (1, 1), Some("1"), false);
    story.seen(45, MCM, (1, 0), Some("2"), true);
    story.seen(46, MCM, (1, 1), Some("2"), false);
    story.breaks(Invariant::S6);

    let mut story = TimelineBuilder::new();
    story.lost();
    story.seen(22, MCM, (0, 2), None, false);
    story.seen(23, MCM, (2, 2), None, false);
    story.breaks(Invariant::S6);
}
