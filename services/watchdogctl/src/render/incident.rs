//! The incidents of a shoot: the last one and the one that runs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use watchdog_client::wire::{forward, micros};
use watchdog_proto::probe::v1::{Outcome, ZoneEvidence};
use watchdog_proto::scaling::v1::{Direction, Incident, ScaleTimes, ShootScaling};

use super::frame::{Frame, Style};
use super::table::TextTable;
use super::text;

/// The dependant that marks nodes Unknown.
const KUBE_CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// How long machine-controller-manager waits by default before it replaces the machine of a node that is Unknown.
const MACHINE_HEALTH_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The grace period of kube-controller-manager by default, for a program that does not report it.
const DEFAULT_GRACE: Duration = Duration::from_secs(40);

/// There is no incident.
pub(crate) const NOTHING: &str =
    "Nothing has happened to this shoot since the coordinator became the leader.\n";

/// An incident of a shoot, as it is known at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShootIncident<'a> {
    /// Its name in the API.
    pub(crate) name: &'static str,
    pub(crate) incident: &'a Incident,
    /// The replica that scaled.
    leader: &'a str,
    now: Timestamp,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct IncidentMoment {
    /// Seconds since the start of the incident.
    pub(crate) after: f64,
    pub(crate) what: String,
    /// The program or the writer.
    pub(crate) who: String,
}

/// A dependant that was at zero, in seconds since the start of the incident.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DownTime {
    pub(crate) name: String,
    pub(crate) from: f64,
    /// None while it is.
    pub(crate) to: Option<f64>,
}

/// The damage of an incident without the watchdog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Prevention {
    /// Nodes that were spared; none if their number is not known.
    pub(crate) nodes: Option<u32>,
    /// One sentence for people.
    pub(crate) text: String,
}

impl Prevention {
    fn new(nodes: Option<u32>, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { nodes, text }
    }
}

impl<'a> ShootIncident<'a> {
    /// The incidents of a shoot, the newest first.
    pub(crate) fn all(scaling: &'a ShootScaling, now: Timestamp) -> impl Iterator<Item = Self> {
        let known = [
            ("incident", &scaling.incident),
            ("lastIncident", &scaling.last_incident),
        ];
        known.into_iter().filter_map(move |(name, incident)| {
            Some(Self {
                name,
                incident: incident.as_ref()?,
                leader: &scaling.replica,
                now,
            })
        })
    }

    pub(crate) const fn is_running(&self) -> bool {
        self.incident.verdict_to_restored.is_none()
    }

    /// True if it ended although the shoot was not healthy again: the shoot hibernated, migrated or was being deleted,
    /// and nothing was held down any more.
    pub(crate) const fn is_released(&self) -> bool {
        !self.is_running() && self.incident.verdict_to_healthy.is_none()
    }

    /// The time that has passed in it: until its end, or until now.
    pub(crate) fn length(&self) -> Duration {
        if let Some(ended) = &self.incident.verdict_to_restored {
            return forward(Some(ended));
        }
        let started = text::timestamp(self.incident.start_time);
        started.map_or(Duration::ZERO, |started| text::passed(started, self.now))
    }

    /// The node monitor grace period of the shoot.
    pub(crate) fn grace(&self) -> Duration {
        let reported = self.incident.node_monitor_grace_period.as_ref();
        reported.map_or(DEFAULT_GRACE, |grace| forward(Some(grace)))
    }

    /// Says what it would have cost: the nodes that kube-controller-manager would have marked Unknown.
    pub(crate) fn prevention(&self) -> Prevention {
        let incident = self.incident;
        let Some(before) = incident.last_renewal_to_verdict.as_ref() else {
            return Prevention::new(None, "unknown: no lease had expired when it began");
        };
        let (grace, before) = (self.grace(), forward(Some(before)));
        let healthy = incident.verdict_to_healthy.as_ref();
        let silent = before + healthy.map_or_else(|| self.length(), |healthy| forward(Some(healthy)));
        let (grace_shown, silent_shown) = (text::duration(grace), text::duration(silent));
        if silent <= grace {
            let yet = if healthy.is_none() && self.is_running() {
                " yet"
            } else {
                ""
            };
            let text = format!(
                "nothing{yet}: the leases were not renewed for {silent_shown}, and kube-controller-manager waits \
                 {grace_shown}"
            );
            return Prevention::new(Some(0), text);
        }
        let downs = self.down_times().into_iter();
        let stops = downs.filter(|down| down.name == KUBE_CONTROLLER_MANAGER);
        let Some(stopped) = stops.map(|down| down.from).reduce(f64::min) else {
            // The record of a leader that found everything scaled down, or of a shoot that was not scaled.
            let text = "unknown: the record has no scale-down of kube-controller-manager by this leader";
            return Prevention::new(None, text);
        };
        let marks_after = grace.saturating_sub(before);
        if stopped > marks_after.as_secs_f64() {
            let text = format!(
                "nothing: kube-controller-manager was scaled down {} after the verdict, and marks nodes Unknown after \
                 {}",
                duration_of(stopped),
                text::duration(marks_after)
            );
            return Prevention::new(Some(0), text);
        }
        let nodes: u32 = incident.zones.iter().map(|zone| zone.expired).sum();
        let nodes = (nodes > 0).then_some(nodes);
        let shown = match (nodes, incident.peak_expired_fraction) {
            (Some(nodes), _) => text::count(nodes, "node", "nodes"),
            (None, Some(share)) => format!("{} of the nodes", text::percent(share)),
            (None, None) => "nodes".to_owned(),
        };
        if self.is_released() {
            // Their leases never came back, so nobody knows whether their machines would have been needed.
            let text = format!("unknown: released before the leases of {shown} were renewed");
            return Prevention::new(None, text);
        }
        let machines = if silent > grace + MACHINE_HEALTH_TIMEOUT {
            ", and machine-controller-manager would have replaced their machines"
        } else {
            ""
        };
        let text = format!(
            "{shown} that kube-controller-manager would have marked Unknown {grace_shown} after the last \
             renewal{machines}"
        );
        if incident.in_mode_observe {
            let text = format!("nothing, because the mode was observe; in mode protect: {text}");
            return Prevention::new(Some(0), text);
        }
        Prevention::new(nodes, text)
    }

    /// `ended after 5m12s`, or `not ended`.
    pub(crate) fn state(&self) -> String {
        let length = text::duration(self.length());
        if self.is_running() {
            "not ended".to_owned()
        } else if self.is_released() {
            format!("released after {length}")
        } else {
            format!("ended after {length}")
        }
    }

    /// Its state and what was written: `ended after 5m12s: 2 down, 2 up, 0 writes failed`.
    pub(crate) fn summary(&self) -> String {
        let incident = self.incident;
        let failed = text::count(incident.failed_writes, "write", "writes");
        let comparison = match seconds(incident.scale_down_lead) {
            _ if !incident.in_mode_observe => String::new(),
            Some(lead) => format!("; mode observe, lead {lead:.1} s"),
            None => "; mode observe, no other writer to compare with".to_owned(),
        };
        let (state, down, up) = (self.state(), incident.scaled_down, incident.scaled_up);
        format!("{state}: {down} down, {up} up, {failed} failed{comparison}")
    }

    /// The outcome that started it.
    pub(crate) fn outcome(&self) -> String {
        match self.incident.outcome() {
            Outcome::Unspecified => "the coordinator became the leader, or another writer scaled".to_owned(),
            outcome => text::value(outcome.as_str_name()),
        }
    }

    /// Each dependant that this program scaled down or, in mode observe, would have.
    pub(crate) fn down_times(&self) -> Vec<DownTime> {
        let all = &self.incident.scale_times;
        let of = |times: &ScaleTimes| {
            let from = seconds(times.scaled_after).filter(|_| times.direction() == Direction::Down)?;
            let mut ups = all.iter().filter(|other| other.direction() == Direction::Up);
            let up = ups.find(|up| up.resource == times.resource);
            let up = up.and_then(|up| seconds(up.scaled_after));
            let name = times.resource.as_ref().map(|resource| resource.name.clone());
            Some(DownTime {
                name: name.unwrap_or_else(|| "?".to_owned()),
                from,
                to: up.or_else(|| self.is_released().then(|| self.length().as_secs_f64())),
            })
        };
        all.iter().filter_map(of).collect()
    }

    /// All that happened, the earliest first.
    pub(crate) fn moments(&self) -> Vec<IncidentMoment> {
        let mut moments = Vec::new();
        let mut add = |after: Option<f64>, who: &str, what: String| {
            let who = who.to_owned();
            moments.extend(after.map(|after| IncidentMoment { after, what, who }));
        };
        let (incident, leader) = (self.incident, self.leader);
        let renewed = incident.last_renewal_to_verdict.as_ref();
        let renewed = renewed.map(|age| text::duration(forward(Some(age))));
        let renewed = renewed.map(|age| format!(", {age} after the last renewal"));
        let started = format!("{}{}", self.outcome(), renewed.unwrap_or_default());
        add(Some(0.0), "lease-probe", started);
        let ours = if incident.in_mode_observe {
            "would have been scaled"
        } else {
            "scaled"
        };
        for times in &incident.scale_times {
            let resource = text::resource(times.resource.as_ref());
            let way = match times.direction() {
                Direction::Down => "down",
                _ => "up",
            };
            add(
                seconds(times.scaled_after),
                leader,
                format!("{resource} {ours} {way}"),
            );
            let other = format!("{resource} scaled {way}");
            add(seconds(times.other_scaled_after), &times.other, other);
        }
        let healthy = seconds(incident.verdict_to_healthy);
        add(healthy, "lease-probe", "healthy".to_owned());
        let ended = if self.is_released() {
            "released: the shoot hibernated, migrated or was being deleted"
        } else {
            "everything restored"
        };
        add(seconds(incident.verdict_to_restored), leader, ended.to_owned());
        moments.sort_by(|a, b| a.after.total_cmp(&b.after));
        moments
    }

    /// A time in seconds after the start; none if the start is not known.
    fn at(&self, seconds: f64) -> Option<Timestamp> {
        let passed = SignedDuration::try_from_secs_f64(seconds).ok()?;
        let started = text::timestamp(self.incident.start_time)?;
        started.checked_add(passed).ok()
    }

    /// A picture in Markdown: a Gantt chart of Mermaid. GitHub and GitLab draw it, and remove SVG. Its times are UTC,
    /// because Mermaid shows the digits that it reads. Nothing, if the start is not known.
    pub(crate) fn picture(&self, shoot: &str) -> String {
        let time = |seconds| Some(self.at(seconds)?.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string());
        let section = |name: &str| Some(format!("section {}", words(name)));
        let bar = |kind: &str, what: &str, from: f64, to: f64| {
            let name = words(&format!("{what} for {}", duration_of(to - from)));
            Some(format!("{name} :{kind}, {}, {}", time(from)?, time(to)?))
        };
        let milestone = |name: &str, at| Some(format!("{name} :milestone, {}, 0ms", time(at)?));
        if self.at(0.0).is_none() {
            return String::new();
        }
        let before = seconds(self.incident.last_renewal_to_verdict).unwrap_or_default();
        let end = self.length().as_secs_f64();
        let healthy = seconds(self.incident.verdict_to_healthy);
        let marked = self.grace().as_secs_f64() - before;
        let is_marked = before > 0.0 && marked < end;
        let would = "kube-controller-manager would mark the nodes Unknown";
        let mut lines = vec![
            Some(format!("title Incident of {}", words(shoot))),
            Some("dateFormat YYYY-MM-DD HH:mm:ss.SSS".to_owned()),
            Some("axisFormat %H:%M:%S".to_owned()),
            section("leases"),
            bar("done", "not renewed, no verdict yet", -before, 0.0),
            bar("crit", &self.outcome(), 0.0, healthy.unwrap_or(end)),
            milestone("verdict", 0.0),
            milestone(would, marked).filter(|_| is_marked),
            healthy.and_then(|healthy| milestone("verdict healthy", healthy)),
        ];
        for down in self.down_times() {
            let up = down.to.unwrap_or(end).max(down.from);
            lines.extend([section(&down.name), bar("active", "scaled down", down.from, up)]);
        }
        let lines = lines.into_iter().flatten().map(|line| format!("  {line}\n"));
        format!("```mermaid\ngantt\n{}```\n", lines.collect::<String>())
    }

    pub(crate) fn lines(&self, frame: &Frame) -> String {
        let style = if self.is_running() {
            Style::Warn
        } else {
            Style::Good
        };
        let mut out = format!("{} {}\n", frame.paint(style, "incident"), self.summary());
        for sentence in [
            self.incident.reason.clone(),
            peak(self.incident).unwrap_or_default(),
            format!("prevented: {}", self.prevention().text),
            self.incident.last_error.clone(),
        ] {
            if !sentence.is_empty() {
                out.push_str(&format!("  {sentence}\n"));
            }
        }
        let table = TextTable::of(self.moments())
            .indented(2)
            .column("AFTER", |moment| duration_of(moment.after))
            .column("AT", |moment| {
                text::shown(self.at(moment.after).map(|at| text::clock(at, frame.now)))
            })
            .column("BY", |moment| moment.who.clone())
            .column("WHAT", |moment| moment.what.clone());
        out.push_str(&table.render(frame));
        let took = stages(self.incident);
        if !took.is_empty() {
            out.push_str(&format!("  {}\n", took.join(", ")));
        }
        out
    }
}

/// A text without any character that Mermaid or Markdown takes for markup.
fn words(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_., ".contains(c);
    text.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect()
}

/// Each stage, and how long it took.
fn stages(incident: &Incident) -> Vec<String> {
    let span = |sent: &Option<prost_types::Duration>| sent.as_ref().map(|sent| forward(Some(sent)));
    let healthy = span(&incident.verdict_to_healthy);
    let restored = span(&incident.verdict_to_restored).zip(healthy);
    let stages = [
        ("last renewal to verdict", span(&incident.last_renewal_to_verdict)),
        ("verdict to first write", span(&incident.verdict_to_first_write)),
        ("verdict to last write", span(&incident.verdict_to_last_write)),
        ("verdict to healthy", healthy),
        (
            "healthy to restored",
            restored.map(|(end, start)| end.saturating_sub(start)),
        ),
    ];
    let took = |(stage, took)| Some(format!("{stage} {}", text::duration(took?)));
    stages.into_iter().filter_map(took).collect()
}

/// The share of expired leases at the peak, with its zones; none if no lease was eligible.
fn peak(incident: &Incident) -> Option<String> {
    let share = text::percent(incident.peak_expired_fraction?);
    let zone = |zone: &ZoneEvidence| format!("{} {}/{}", text::zone(zone), zone.expired, zone.candidates);
    let zones: Vec<String> = incident.zones.iter().map(zone).collect();
    let colon = if zones.is_empty() { "" } else { ": " };
    Some(format!(
        "{share} of the eligible leases expired{colon}{}",
        zones.join(", ")
    ))
}

/// A span as seconds, which may be negative.
pub(crate) fn seconds(sent: Option<prost_types::Duration>) -> Option<f64> {
    sent.map(|sent| micros(Some(&sent)) as f64 / 1e6)
}

/// Seconds, which may be before the start.
pub(crate) fn duration_of(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    let duration = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
    format!("{sign}{}", text::duration(duration))
}

/// Both incidents, the older one first, each with what happened in it.
pub(crate) fn lines(scaling: &ShootScaling, frame: &Frame) -> String {
    let shown = ShootIncident::all(scaling, frame.now).map(|incident| incident.lines(frame));
    let mut shown: Vec<String> = shown.collect();
    if shown.is_empty() {
        return NOTHING.to_owned();
    }
    shown.reverse();
    shown.join("\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use watchdog_client::wire::signed;
    use watchdog_proto::scaling::v1::ResourceState;

    use super::*;
    use crate::render::testing;

    fn span(seconds: f64) -> prost_types::Duration {
        signed((seconds * 1e6) as i64)
    }

    fn times(name: &str, direction: Direction, ours: Option<f64>, other: Option<f64>) -> ScaleTimes {
        ScaleTimes {
            resource: testing::resource(name, 0, ResourceState::Waiting).resource,
            direction: direction.into(),
            scaled_after: ours.map(span),
            other_scaled_after: other.map(span),
            other: other
                .map(|_| "dependency-watchdog".to_owned())
                .unwrap_or_default(),
        }
    }

    pub(crate) fn ended() -> Incident {
        Incident {
            outcome: Outcome::LeasesExpired.into(),
            start_time: testing::ago(400),
            last_renewal_to_verdict: testing::seconds(32),
            verdict_to_healthy: testing::seconds(300),
            verdict_to_restored: testing::seconds(312),
            scaled_down: 1,
            scaled_up: 1,
            failed_writes: 1,
            peak_expired_fraction: Some(0.75),
            zones: vec![ZoneEvidence {
                zone: "a".to_owned(),
                candidates: 4,
                expired: 3,
            }],
            scale_times: vec![
                times(KUBE_CONTROLLER_MANAGER, Direction::Down, Some(0.25), None),
                times(KUBE_CONTROLLER_MANAGER, Direction::Up, Some(301.0), None),
            ],
            reason: "A sentence.".to_owned(),
            last_error: "forbidden".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn an_incident_is_shown_in_the_order_in_which_it_happened() {
        let runs = Incident {
            start_time: testing::ago(10),
            ..Default::default()
        };
        let scaling = ShootScaling {
            incident: Some(runs),
            last_incident: Some(ended()),
            replica: "coordinator-0".to_owned(),
            ..Default::default()
        };
        let expected = "\
incident ended after 5m12s: 1 down, 1 up, 1 write failed
  A sentence.
  75 % of the eligible leases expired: a 3/4
  prevented: 3 nodes that kube-controller-manager would have marked Unknown 40s after the last renewal
  forbidden
  AFTER  AT         BY             WHAT
  0s     00:33:20Z  lease-probe    LEASES_EXPIRED, 32s after the last renewal
  250ms  00:33:20Z  coordinator-0  Deployment/kube-controller-manager scaled down
  5m00s  00:38:20Z  lease-probe    healthy
  5m01s  00:38:21Z  coordinator-0  Deployment/kube-controller-manager scaled up
  5m12s  00:38:32Z  coordinator-0  everything restored
  last renewal to verdict 32s, verdict to healthy 5m00s, healthy to restored 12s

incident not ended: 0 down, 0 up, 0 writes failed
  prevented: unknown: no lease had expired when it began
  AFTER  AT         BY           WHAT
  0s     00:39:50Z  lease-probe  the coordinator became the leader, or another writer scaled
";
        assert_eq!(lines(&scaling, &testing::pipe()), expected);
        let none = lines(&ShootScaling::default(), &testing::pipe());
        assert_eq!(none, NOTHING);
    }

    /// The scaling of a shoot with this incident, which is not the current one.
    pub(crate) fn after(last: Incident) -> ShootScaling {
        ShootScaling {
            last_incident: Some(last),
            replica: "coordinator-0".to_owned(),
            ..ShootScaling::default()
        }
    }

    /// Later hours of hibernation are neither silence nor prevented.
    #[test]
    fn an_incident_of_a_shoot_that_hibernated_is_released() {
        let released = Incident {
            verdict_to_healthy: None,
            verdict_to_restored: testing::seconds(60),
            start_time: testing::ago(50_000),
            ..ended()
        };
        let text = lines(&after(released), &testing::pipe());
        assert!(
            text.starts_with("incident released after 1m00s: 1 down"),
            "{text}"
        );
        let ended = "  1m00s  2026-11-22 10:47:40Z  coordinator-0  released: the shoot hibernated, ";
        assert!(text.contains(ended), "{text}");
        assert!(
            text.contains("  prevented: unknown: released before the leases of 3 nodes were renewed\n"),
            "{text}"
        );
    }

    #[test]
    fn an_incident_in_mode_observe_shows_who_was_first() {
        let mut ended = Incident {
            in_mode_observe: true,
            scale_times: vec![times(
                KUBE_CONTROLLER_MANAGER,
                Direction::Down,
                Some(0.0),
                Some(-2.0),
            )],
            scale_down_lead: Some(span(-2.04)),
            ..Default::default()
        };
        let shown = |ended: &Incident| lines(&after(ended.clone()), &testing::pipe());
        let text = shown(&ended);
        assert!(text.contains("; mode observe, lead -2.0 s\n"), "{text}");
        let other =
            text.find("-2s    -   dependency-watchdog  Deployment/kube-controller-manager scaled down");
        let ours = text.find("Deployment/kube-controller-manager would have been scaled down");
        assert!(other.is_some() && other < ours, "{text}");
        ended.scale_down_lead = None;
        let alone = shown(&ended);
        assert!(
            alone.contains("; mode observe, no other writer to compare with\n"),
            "{alone}"
        );
    }

    fn drawn(shoot: &str, incident: Incident) -> String {
        let scaling = after(incident);
        let incident = ShootIncident::all(&scaling, testing::pipe().now).next().unwrap();
        incident.picture(shoot)
    }

    #[test]
    fn the_picture_has_a_section_for_the_leases_and_for_each_dependant() {
        let expected = "\
```mermaid
gantt
  title Incident of shoot--a--b
  dateFormat YYYY-MM-DD HH:mm:ss.SSS
  axisFormat %H:%M:%S
  section leases
  not renewed, no verdict yet for 32s :done, 2026-11-23 00:32:48.000, 2026-11-23 00:33:20.000
  LEASES_EXPIRED for 5m00s :crit, 2026-11-23 00:33:20.000, 2026-11-23 00:38:20.000
  verdict :milestone, 2026-11-23 00:33:20.000, 0ms
  kube-controller-manager would mark the nodes Unknown :milestone, 2026-11-23 00:33:28.000, 0ms
  verdict healthy :milestone, 2026-11-23 00:38:20.000, 0ms
  section kube-controller-manager
  scaled down for 5m00s :active, 2026-11-23 00:33:20.250, 2026-11-23 00:38:21.000
```
";
        assert_eq!(drawn("shoot--a--b", ended()), expected);
    }

    #[test]
    fn names_with_markup_are_text_in_the_picture() {
        let mut incident = ended();
        for times in &mut incident.scale_times {
            times.resource.as_mut().unwrap().name = "a:b;c#d\n```<script>\u{1b}[2J%%{".to_owned();
        }
        let picture = drawn("a\n```b", incident);
        assert!(picture.contains("  title Incident of a    b\n"), "{picture}");
        assert!(
            picture.contains("  section a b c d     script   2J   \n"),
            "{picture}"
        );
    }

    #[test]
    fn an_incident_without_any_data_and_one_that_never_ends_are_drawn() {
        let endless = Incident {
            verdict_to_healthy: None,
            verdict_to_restored: testing::seconds(i64::MAX),
            ..ended()
        };
        let future = Incident {
            start_time: testing::ago(-100_000),
            ..Incident::default()
        };
        for incident in [future, endless] {
            let picture = drawn("a", incident);
            assert!(picture.contains("  verdict :milestone, "), "{picture}");
        }
        assert_eq!(drawn("a", Incident::default()), "", "its start is not known");
    }

    #[test]
    fn only_what_would_have_happened_was_prevented() {
        let now = testing::pipe().now;
        let nodes = |change: &dyn Fn(&mut Incident)| {
            let mut incident = ended();
            change(&mut incident);
            ShootIncident::all(&after(incident), now)
                .next()
                .unwrap()
                .prevention()
        };
        let first = |incident: &mut Incident, after: Option<f64>| {
            incident.scale_times[0].scaled_after = after.map(span)
        };
        for (change, count, part) in [
            (
                &(|_: &mut Incident| {}) as &dyn Fn(&mut Incident),
                Some(3),
                "3 nodes that",
            ),
            (
                &|incident| incident.verdict_to_healthy = testing::seconds(8),
                Some(0),
                "nothing: the leases were not renewed for 40s, and kube-controller-manager waits 40s",
            ),
            (
                &|incident| {
                    (incident.verdict_to_healthy, incident.verdict_to_restored) = (None, None);
                    incident.start_time = testing::ago(5);
                },
                Some(0),
                "nothing yet: the leases were not renewed for 37s",
            ),
            (
                &|incident| incident.node_monitor_grace_period = testing::seconds(600),
                Some(0),
                "kube-controller-manager waits 10m00s",
            ),
            (
                &|incident| first(incident, None),
                None,
                "has no scale-down of kube-controller-manager",
            ),
            (
                &|incident| first(incident, Some(9.0)),
                Some(0),
                "scaled down 9s after the verdict, and marks nodes Unknown after 8s",
            ),
            (
                &|incident| incident.last_renewal_to_verdict = None,
                None,
                "no lease had expired",
            ),
            (&|incident| incident.zones.clear(), None, "75 % of the nodes that"),
            (
                &|incident| incident.in_mode_observe = true,
                Some(0),
                "nothing, because the mode was observe; in mode protect: 3 nodes",
            ),
            (
                &|incident| incident.verdict_to_healthy = testing::seconds(1_000),
                Some(3),
                "would have replaced their machines",
            ),
            (
                &|incident| {
                    (incident.verdict_to_healthy, incident.verdict_to_restored) = (None, None);
                    incident.start_time = testing::ago(9);
                },
                Some(3),
                "3 nodes that",
            ),
        ] {
            let found = nodes(change);
            assert!(
                found.nodes == count && found.text.contains(part),
                "{part}: {found:?}"
            );
        }
    }
}
