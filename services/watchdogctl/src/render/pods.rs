//! Faults of the Pods of a release, by what the API server of the seed says about them.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use watchdog_api::text::{printable, printable_message};

use super::check::{CheckFinding, Severity};
use super::text;
use crate::program::Program;

/// A container that ended with an error within this time crashes, even if it runs at the moment: the kubelet waits for
/// up to five minutes between two starts.
const CRASHED_WITHIN: Duration = Duration::from_secs(10 * 60);

/// The Pods of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramPods {
    pub(crate) program: Program,
    /// `NAMESPACE/NAME` of its Deployment.
    pub(crate) deployment: String,
    /// Replicas that the Deployment asks for; none without a Deployment.
    pub(crate) desired: Option<i32>,
    pub(crate) pods: Vec<ReplicaPod>,
}

/// The facts about a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplicaPod {
    pub(crate) name: String,
    pub(crate) is_deleted: bool,
    pub(crate) is_ready: bool,
    pub(crate) is_running: bool,
    /// Why it has ended for good, for example after an eviction.
    pub(crate) ended: Option<String>,
    /// Why no node takes it.
    pub(crate) unscheduled: Option<String>,
    pub(crate) containers: Vec<ContainerFacts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerFacts {
    pub(crate) name: String,
    /// The reason and the message of its wait.
    pub(crate) waiting: Option<(String, String)>,
    pub(crate) restarts: i32,
    pub(crate) last_exit: Option<ContainerExit>,
    /// The end of its log before its last start, or why that cannot be read; none if it was not read.
    pub(crate) log: Option<Result<String, String>>,
}

/// How a container ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerExit {
    pub(crate) code: i32,
    pub(crate) reason: String,
    pub(crate) at: Option<Timestamp>,
}

impl ProgramPods {
    /// The number of Pods that are ready and stay.
    pub(crate) fn ready(&self) -> usize {
        let ready = self.pods.iter().filter(|pod| pod.is_ready && !pod.is_deleted);
        ready.count()
    }
}

impl ReplicaPod {
    /// True if it can be asked, ready or not.
    pub(crate) fn is_answering(&self) -> bool {
        let is_waiting = self
            .containers
            .iter()
            .any(|container| container.waiting.is_some());
        self.is_running && !self.is_deleted && !is_waiting
    }
}

impl ContainerFacts {
    /// True if the log before its last start says more.
    pub(crate) fn has_log(&self) -> bool {
        self.last_exit.as_ref().is_some_and(|exit| exit.code != 0)
    }
}

/// The findings about all programs.
pub(crate) fn findings(programs: &[ProgramPods], now: Timestamp) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    for program in programs {
        findings.push(replicas(program));
        let stay = program.pods.iter().filter(|pod| !pod.is_deleted);
        findings.extend(stay.flat_map(|pod| of_pod(program.program, pod, now)));
    }
    findings
}

/// Compares the ready Pods with those that the Deployment asks for.
fn replicas(program: &ProgramPods) -> CheckFinding {
    let (subject, what) = (program.program.as_str(), "replicas");
    let (ready, effect) = (program.ready(), effect(program.program));
    match program.desired {
        None => {
            let text = format!("the Deployment {} does not exist{}", program.deployment, effect);
            CheckFinding::wrong(subject, what, text)
        }
        Some(desired) if desired <= 0 => {
            let text = format!("the Deployment {} is scaled to 0{}", program.deployment, effect);
            CheckFinding::wrong(subject, what, text)
        }
        Some(desired) if usize::try_from(desired).is_ok_and(|desired| ready < desired) => {
            let none = if ready == 0 { effect } else { "" };
            CheckFinding::wrong(subject, what, format!("{ready} of {desired} are ready{none}"))
        }
        Some(desired) => CheckFinding::fine(subject, what, format!("{ready} of {desired} are ready")),
    }
}

/// The effect when no replica of a program works.
const fn effect(program: Program) -> &'static str {
    match program {
        Program::LeaseProbe => ": no loss is detected, and no shoot is protected",
        Program::ScalingCoordinator => ": no shoot is protected, and nothing that is held down is restored",
        Program::Weeder => ": crash-looping pods wait for up to five minutes after a recovery",
    }
}

fn of_pod(program: Program, pod: &ReplicaPod, now: Timestamp) -> Vec<CheckFinding> {
    let subject = format!("{program} {}", pod.name);
    let wrong = |text: String| CheckFinding::wrong(&subject, "pod", text);
    if let Some(why) = &pod.ended {
        let text = format!("has ended for good: {why}; delete it");
        return vec![CheckFinding::new(Severity::Notice, &subject, "pod", text)];
    }
    if let Some(why) = &pod.unscheduled {
        return vec![wrong(format!("no node takes it: {why}"))];
    }
    let of_container = |container: &ContainerFacts| {
        if let Some(text) = crash(container, now) {
            return Some(wrong(text));
        }
        match &container.waiting {
            // It was created a moment ago, or an init container runs.
            Some((reason, _)) if matches!(reason.as_str(), "ContainerCreating" | "PodInitializing") => {
                let text = format!("does not run yet: {reason}");
                Some(CheckFinding::new(Severity::Notice, &subject, "pod", text))
            }
            Some((reason, message)) => Some(wrong(format!("does not start: {}", joined(reason, message)))),
            None if container.restarts > 0 => {
                let text = format!("{}, none within 10 minutes", restarts(container.restarts));
                Some(CheckFinding::new(Severity::Notice, &subject, "pod", text))
            }
            None => None,
        }
    };
    pod.containers.iter().filter_map(of_container).collect()
}

/// Why a container crashes; none if it does not.
fn crash(container: &ContainerFacts, now: Timestamp) -> Option<String> {
    let exit = container.last_exit.as_ref().filter(|exit| exit.code != 0);
    let is_waiting = container
        .waiting
        .as_ref()
        .is_some_and(|(reason, _)| reason == "CrashLoopBackOff");
    let is_recent = exit.is_some_and(|exit| {
        let ago = exit.at.map(|at| now.duration_since(at));
        ago.is_none_or(|ago| ago.unsigned_abs() < CRASHED_WITHIN || ago.is_negative())
    });
    if !is_waiting && !is_recent {
        return None;
    }
    let mut text = format!("{} crashes, {}", container.name, restarts(container.restarts));
    if is_waiting {
        text.push_str(", CrashLoopBackOff");
    }
    if let Some(exit) = exit {
        text.push_str(&format!(", exit code {}", exit.code));
        if !exit.reason.is_empty() && exit.reason != "Error" {
            text.push_str(&format!(" ({})", exit.reason));
        }
        if let Some(at) = exit.at {
            let ago = Duration::try_from(now.duration_since(at)).unwrap_or_default();
            text.push_str(&format!(" {} ago", text::duration(ago)));
        }
    }
    match &container.log {
        Some(Ok(log)) => match cause(log) {
            Some(cause) => text.push_str(&format!(": {cause}")),
            None => text.push_str("; its log is empty"),
        },
        Some(Err(why)) => text.push_str(&format!("; {}", printable_message(why))),
        None => {}
    }
    Some(text)
}

fn restarts(count: i32) -> String {
    match count {
        1 => "1 restart".to_owned(),
        count => format!("{count} restarts"),
    }
}

fn joined(reason: &str, message: &str) -> String {
    match (reason, message) {
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

/// Why a program ended, by the end of its log: its last error, a panic, or else its last line.
fn cause(log: &str) -> Option<String> {
    let lines: Vec<&str> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let last = |wanted: &dyn Fn(&str) -> bool| lines.iter().rposition(|line| wanted(line));
    let at = last(&|line| line.contains(" panicked at "))
        .or_else(|| last(&is_error))
        .or_else(|| lines.len().checked_sub(1))?;
    let line = lines.get(at)?;
    // The message of a panic is in the line after the place.
    let more = lines.get(at + 1).filter(|_| line.contains(" panicked at "));
    let text = more.map_or_else(|| sentence(line), |more| format!("{line} {more}"));
    Some(printable_message(&text))
}

fn is_error(line: &str) -> bool {
    match serde_json::from_str::<Value>(line) {
        Ok(fields) => fields.get("level").is_some_and(|level| level == "ERROR"),
        Err(_) => line.starts_with("error: ") || line.contains(" ERROR "),
    }
}

/// The message of a line with its error, without the rest.
fn sentence(line: &str) -> String {
    let fields = serde_json::from_str::<Value>(line).unwrap_or_default();
    let text = |name: &str| {
        fields
            .get(name)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    match (text("message"), text("error")) {
        (Some(message), Some(error)) => format!("{message}: {error}"),
        (Some(message), None) => message.to_owned(),
        _ => printable(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn ready(name: &str) -> ReplicaPod {
        ReplicaPod {
            name: name.to_owned(),
            is_ready: true,
            is_running: true,
            containers: vec![ContainerFacts {
                name: "weeder".to_owned(),
                ..ContainerFacts::default()
            }],
            ..ReplicaPod::default()
        }
    }

    fn crashing(seconds_ago: i64, waiting: Option<&str>) -> ReplicaPod {
        let at = Timestamp::from_second(testing::NOW - seconds_ago).unwrap();
        ReplicaPod {
            containers: vec![ContainerFacts {
                name: "weeder".to_owned(),
                waiting: waiting.map(|reason| (reason.to_owned(), "back-off 5m0s".to_owned())),
                restarts: 7,
                last_exit: Some(ContainerExit {
                    code: 2,
                    reason: "Error".to_owned(),
                    at: Some(at),
                }),
                log: Some(Ok(
                    r#"{"level":"ERROR","message":"cannot start","error":"no such file"}"#.to_owned(),
                )),
            }],
            ..ready("b")
        }
    }

    fn found(desired: Option<i32>, pods: Vec<ReplicaPod>) -> Vec<(Severity, String)> {
        let program = ProgramPods {
            program: Program::Weeder,
            deployment: "garden/watchdog-weeder".to_owned(),
            desired,
            pods,
        };
        let found = findings(&[program], testing::pipe().now);
        found
            .into_iter()
            .map(|finding| (finding.severity, format!("{}: {}", finding.subject, finding.text)))
            .collect()
    }

    #[test]
    fn ready_pods_are_compared_with_the_deployment() {
        use Severity::{Fine, Wrong};
        let deleted = ReplicaPod {
            is_deleted: true,
            ..ready("c")
        };
        let waits = ": crash-looping pods wait for up to five minutes after a recovery";
        for (desired, pods, severity, text) in [
            (
                Some(2),
                vec![ready("a"), ready("b")],
                Fine,
                "2 of 2 are ready".to_owned(),
            ),
            (
                Some(2),
                vec![ready("a"), deleted],
                Wrong,
                "1 of 2 are ready".to_owned(),
            ),
            (Some(1), vec![], Wrong, format!("0 of 1 are ready{waits}")),
            (
                Some(0),
                vec![],
                Wrong,
                format!("the Deployment garden/watchdog-weeder is scaled to 0{waits}"),
            ),
            (
                None,
                vec![],
                Wrong,
                format!("the Deployment garden/watchdog-weeder does not exist{waits}"),
            ),
        ] {
            assert_eq!(found(desired, pods), [(severity, format!("weeder: {text}"))]);
        }
    }

    #[test]
    fn a_crash_is_named_with_its_reason_and_the_cause_in_its_log() {
        // Also while it runs between two crashes, and beside enough ready replicas.
        for (pod, loops) in [
            (crashing(40, Some("CrashLoopBackOff")), ", CrashLoopBackOff"),
            (crashing(40, None), ""),
        ] {
            let found = found(Some(1), vec![ready("a"), pod]);
            let text = format!(
                "weeder b: weeder crashes, 7 restarts{loops}, exit code 2 40s ago: cannot start: no such file"
            );
            assert_eq!(found[1], (Severity::Wrong, text));
        }
        let unread = |log| {
            let mut pod = crashing(40, None);
            pod.containers[0].log = Some(log);
            found(Some(1), vec![pod])[1].1.clone()
        };
        assert!(
            unread(Err("cannot read its log: gone\u{1b}[2J".to_owned()))
                .ends_with("; cannot read its log: gone [2J")
        );
        assert!(unread(Ok("\n \n".to_owned())).ends_with("; its log is empty"));
        let long_ago = found(Some(1), vec![crashing(3_600, None)]);
        assert_eq!(
            long_ago[1],
            (
                Severity::Notice,
                "weeder b: 7 restarts, none within 10 minutes".to_owned()
            )
        );
    }

    #[test]
    fn a_pod_that_does_not_run_says_why() {
        let waiting = |reason: &str, message: &str| {
            let mut pod = ready("b");
            pod.containers[0].waiting = Some((reason.to_owned(), message.to_owned()));
            pod
        };
        let unscheduled = ReplicaPod {
            unscheduled: Some("0/3 nodes are available".to_owned()),
            ..ready("b")
        };
        let evicted = ReplicaPod {
            ended: Some("Evicted: low on memory".to_owned()),
            ..ready("b")
        };
        for (pod, severity, text) in [
            (
                waiting("ImagePullBackOff", "not found"),
                Severity::Wrong,
                "does not start: ImagePullBackOff: not found",
            ),
            (
                waiting("CreateContainerConfigError", ""),
                Severity::Wrong,
                "does not start: CreateContainerConfigError",
            ),
            (
                waiting("ContainerCreating", ""),
                Severity::Notice,
                "does not run yet: ContainerCreating",
            ),
            (
                unscheduled,
                Severity::Wrong,
                "no node takes it: 0/3 nodes are available",
            ),
            (
                evicted,
                Severity::Notice,
                "has ended for good: Evicted: low on memory; delete it",
            ),
        ] {
            let found = found(Some(1), vec![pod]);
            assert_eq!(found[1], (severity, format!("weeder b: {text}")));
        }
    }

    #[test]
    fn the_cause_is_the_last_error_a_panic_or_the_last_line() {
        for (log, expected) in [
            (
                "{\"level\":\"ERROR\",\"message\":\"first\"}\n{\"level\":\"INFO\",\"message\":\"stopped\"}\n",
                "first",
            ),
            ("a\nerror: no such option\nusage: weeder", "error: no such option"),
            (
                "thread 'main' panicked at src/a.rs:1:2:\nindex out of bounds\nnote: run with",
                "thread 'main' panicked at src/a.rs:1:2: index out of bounds",
            ),
            ("one\ntwo\n\n", "two"),
            ("{\"level\":\"INFO\",\"message\":\"a\\u001b[2Jb\"}", "a [2Jb"),
            ("[1]", "[1]"),
        ] {
            assert_eq!(cause(log).as_deref(), Some(expected));
        }
        assert_eq!(cause(""), None);
        let long = cause(&"x".repeat(100_000)).unwrap();
        assert_eq!(long.chars().count(), 513, "512 characters and a mark");
    }
}
