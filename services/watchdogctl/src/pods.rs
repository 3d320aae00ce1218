//! The Pods of a release and what is wrong with them, by what the API server of the seed says.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition};
use serde_json::Value;
use watchdog_api::text::{printable, printable_message, printable_name};

use crate::findings::CheckFinding;
use crate::program::Program;
use crate::render::text;

/// A container that ended with an error within this time crashes, even if it runs at the moment: the kubelet waits for
/// up to five minutes between two starts.
const CRASHED_WITHIN: Duration = Duration::from_secs(10 * 60);

/// The check of a Pod.
const POD: &str = "pod";

/// The Pods of one program. Texts in them are from kubelets and container runtimes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProgramPods {
    pub(crate) program: Program,
    /// `NAMESPACE/NAME` of its Deployment.
    pub(crate) deployment: String,
    /// Replicas that the Deployment asks for; none without a Deployment.
    pub(crate) desired: Option<i32>,
    pub(crate) pods: Vec<Pod>,
    /// The ends of logs before the last start, or why they cannot be read, by Pod and container.
    pub(crate) logs: BTreeMap<(String, String), Result<String, String>>,
}

impl ProgramPods {
    /// The number of Pods that are ready and stay.
    pub(crate) fn ready(&self) -> usize {
        self.pods.iter().filter(|pod| is_ready(pod)).count()
    }

    fn log(&self, pod: &str, container: &str) -> Option<&Result<String, String>> {
        self.logs.get(&(pod.to_owned(), container.to_owned()))
    }
}

/// The name of a Pod. It is a part of paths of the API, which takes no other.
pub(crate) fn name(pod: &Pod) -> String {
    printable_name(pod.metadata.name.as_deref().unwrap_or_default())
}

/// True if it is ready and stays.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    stays(pod) && condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// True if it can be asked, ready or not.
pub(crate) fn is_answering(pod: &Pod) -> bool {
    let mut containers = containers(pod);
    let is_waiting = containers.any(|container| waiting(container).is_some());
    stays(pod) && phase(pod) == Some("Running") && !is_waiting
}

/// The names of the containers that ended with an error: their logs say more.
pub(crate) fn crashed(pod: &Pod) -> impl Iterator<Item = &str> {
    let crashed = containers(pod).filter(|container| failed_exit(container).is_some());
    crashed.map(|container| container.name.as_str())
}

const fn stays(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn condition<'a>(pod: &'a Pod, wanted: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| &status.conditions).flatten();
    conditions.find(|condition| condition.type_ == wanted)
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let statuses = pod.status.iter();
    let all = statuses.flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    all.flatten().flatten()
}

/// The reason and the message of a wait.
fn waiting(container: &ContainerStatus) -> Option<(String, String)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((
        printable_name(waiting.reason.as_deref().unwrap_or_default()),
        printable_message(waiting.message.as_deref().unwrap_or_default()),
    ))
}

/// The last end with an error. Between its end and CrashLoopBackOff, the state itself is that of the end.
fn failed_exit(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let states = [&container.state, &container.last_state];
    let mut exits = states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref());
    exits.next().filter(|exit| exit.exit_code != 0)
}

/// The findings about all programs.
pub(crate) fn findings(programs: &[ProgramPods], now: Timestamp) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    for program in programs {
        findings.push(replicas(program));
        let stay = program.pods.iter().filter(|pod| stays(pod));
        findings.extend(stay.flat_map(|pod| of_pod(program, pod, now)));
    }
    findings
}

/// Compares the ready Pods with those that the Deployment asks for.
fn replicas(program: &ProgramPods) -> CheckFinding {
    let (subject, what) = (program.program.as_str(), "replicas");
    let (ready, effect) = (program.ready(), effect(program.program));
    let deployment = &program.deployment;
    match program.desired {
        None => CheckFinding::wrong(
            subject,
            what,
            format!("the Deployment {deployment} does not exist{effect}"),
        ),
        Some(desired) if desired <= 0 => CheckFinding::wrong(
            subject,
            what,
            format!("the Deployment {deployment} is scaled to 0{effect}"),
        ),
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

fn of_pod(program: &ProgramPods, pod: &Pod, now: Timestamp) -> Vec<CheckFinding> {
    let name = name(pod);
    let subject = format!("{} {name}", program.program);
    if matches!(phase(pod), Some("Failed" | "Succeeded")) {
        let status = pod.status.iter();
        let why = status
            .flat_map(|status| [&status.reason, &status.message])
            .flatten();
        let why: Vec<&str> = why.map(String::as_str).collect();
        let why = printable_message(&why.join(": "));
        let text = format!("has ended for good: {why}; delete it");
        return vec![CheckFinding::notice(&subject, POD, text)];
    }
    if let Some(condition) = condition(pod, "PodScheduled").filter(|condition| condition.status == "False") {
        let why = condition.message.as_ref().or(condition.reason.as_ref());
        let why = printable_message(why.map_or("no reason is given", |why| why));
        return vec![CheckFinding::wrong(
            &subject,
            POD,
            format!("no node takes it: {why}"),
        )];
    }
    let of_container = |container: &ContainerStatus| {
        let log = program.log(&name, &container.name);
        if let Some(text) = crash(container, log, now) {
            return Some(CheckFinding::wrong(&subject, POD, text));
        }
        match waiting(container) {
            // It was created a moment ago, or an init container runs.
            Some((reason, _)) if matches!(reason.as_str(), "ContainerCreating" | "PodInitializing") => {
                let text = format!("does not run yet: {reason}");
                Some(CheckFinding::notice(&subject, POD, text))
            }
            Some((reason, message)) => {
                let colon = if message.is_empty() { "" } else { ": " };
                let text = format!("does not start: {reason}{colon}{message}");
                Some(CheckFinding::wrong(&subject, POD, text))
            }
            None if container.restart_count > 0 => {
                let text = format!("{}, none within 10 minutes", restarts(container));
                Some(CheckFinding::notice(&subject, POD, text))
            }
            None => None,
        }
    };
    containers(pod).filter_map(of_container).collect()
}

/// Why a container crashes; none if it does not.
fn crash(
    container: &ContainerStatus,
    log: Option<&Result<String, String>>,
    now: Timestamp,
) -> Option<String> {
    let exit = failed_exit(container);
    let ended = exit.and_then(|exit| Some(now.duration_since(exit.finished_at.as_ref()?.0)));
    let is_waiting = waiting(container).is_some_and(|(reason, _)| reason == "CrashLoopBackOff");
    let is_recent = ended.is_none_or(|ago| ago.unsigned_abs() < CRASHED_WITHIN || ago.is_negative());
    let has_crashed = exit.is_some() && is_recent;
    if !is_waiting && !has_crashed {
        return None;
    }
    let mut text = format!(
        "{} crashes, {}",
        printable_name(&container.name),
        restarts(container)
    );
    if is_waiting {
        text.push_str(", CrashLoopBackOff");
    }
    if let Some(exit) = exit {
        text.push_str(&format!(", exit code {}", exit.exit_code));
        let reason = printable_name(exit.reason.as_deref().unwrap_or_default());
        if !reason.is_empty() && reason != "Error" {
            text.push_str(&format!(" ({reason})"));
        }
    }
    if let Some(ago) = ended {
        let ago = Duration::try_from(ago).unwrap_or_default();
        text.push_str(&format!(" {} ago", text::duration(ago)));
    }
    match log {
        Some(Ok(log)) => match cause(log) {
            Some(cause) => text.push_str(&format!(": {cause}")),
            None => text.push_str("; its log is empty"),
        },
        Some(Err(why)) => text.push_str(&format!("; {}", printable_message(why))),
        None => {}
    }
    Some(text)
}

fn restarts(container: &ContainerStatus) -> String {
    text::count(i64::from(container.restart_count), "restart", "restarts")
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
    use serde_json::json;

    use super::*;
    use crate::findings::Severity;
    use crate::render::testing;

    /// A Pod that is ready, with one change.
    fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{
                    "name": "weeder", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                }],
            },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn ready(name: &str) -> Pod {
        pod(name, |_| {})
    }

    fn crashing(seconds_ago: i64, waiting: Option<&str>) -> Pod {
        let at = Timestamp::from_second(testing::NOW - seconds_ago).unwrap();
        pod("b", |pod| {
            let container = &mut pod["status"]["containerStatuses"][0];
            container["restartCount"] = 7.into();
            let end = json!({"exitCode": 2, "reason": "Error", "finishedAt": at.to_string()});
            container["lastState"] = json!({"terminated": end});
            if let Some(reason) = waiting {
                container["state"] = json!({"waiting": {"reason": reason, "message": "back-off 5m0s"}});
            }
        })
    }

    const LOG: &str = r#"{"level":"ERROR","message":"cannot start","error":"no such file"}"#;

    fn found(desired: Option<i32>, pods: Vec<Pod>) -> Vec<(Severity, String)> {
        found_with(Ok(LOG.to_owned()), desired, pods)
    }

    fn found_with(
        log: Result<String, String>,
        desired: Option<i32>,
        pods: Vec<Pod>,
    ) -> Vec<(Severity, String)> {
        let logs = BTreeMap::from([(("b".to_owned(), "weeder".to_owned()), log)]);
        let program = ProgramPods {
            program: Program::Weeder,
            deployment: "garden/watchdog-weeder".to_owned(),
            desired,
            pods,
            logs,
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
        let deleted = pod("c", |pod| {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
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
        let unread = |log| found_with(log, Some(1), vec![crashing(40, None)])[1].1.clone();
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
            let waiting = json!({"waiting": {"reason": reason, "message": message}});
            pod("b", |pod| {
                pod["status"]["containerStatuses"][0]["state"] = waiting
            })
        };
        let unscheduled = pod("b", |pod| {
            let message = "0/3 nodes\u{1b}[2J are available";
            pod["status"]["conditions"] =
                json!([{"type": "PodScheduled", "status": "False", "message": message}]);
        });
        let evicted = pod("b", |pod| {
            pod["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
        });
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
                "no node takes it: 0/3 nodes [2J are available",
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
