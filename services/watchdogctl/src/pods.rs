//! The Pods of a release and what is wrong with them, by what the API server of the seed says.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition};
use serde_json::Value;
use watchdog_api::list::Item;
use watchdog_api::text::{printable_message, printable_name};

use crate::findings::{CheckFinding, Severity};
use crate::program::Program;
use crate::render::text;

/// A container that ended with an error within this time crashes, even if it runs at the moment: the kubelet waits for
/// up to five minutes between two starts.
const CRASHED_WITHIN: Duration = Duration::from_secs(10 * 60);

/// The Pods of one program. Texts in them are from kubelets and container runtimes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProgramPods {
    pub(crate) program: Program,
    /// `NAMESPACE/NAME` of its Deployment.
    pub(crate) deployment: String,
    /// Replicas that the Deployment asks for; none without a Deployment.
    pub(crate) desired: Option<i32>,
    /// Those that cannot be decoded are never ready.
    pub(crate) pods: Vec<Item<Pod>>,
}

impl ProgramPods {
    /// The number of Pods that are ready and stay.
    pub(crate) fn ready(&self) -> usize {
        let pods = self.pods.iter().filter_map(Item::ok);
        pods.filter(|pod| is_ready(pod)).count()
    }

    /// The names of the Pods that can be asked, the ready ones first, because the others may know less. Where none is
    /// ready, the others explain why.
    pub(crate) fn answering(&self) -> Vec<String> {
        let pods = self.pods.iter().filter_map(Item::ok);
        let mut answering: Vec<&Pod> = pods.filter(|pod| is_answering(pod)).collect();
        answering.sort_by_key(|pod| (!is_ready(pod), name(pod)));
        answering.into_iter().map(name).collect()
    }
}

/// The name of a Pod. It is a part of paths of the API, which takes no other.
pub(crate) fn name(pod: &Pod) -> String {
    printable_name(pod.metadata.name.as_deref().unwrap_or_default())
}

/// True if it is ready and stays.
fn is_ready(pod: &Pod) -> bool {
    stays(pod) && condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// True if it can be asked, ready or not.
fn is_answering(pod: &Pod) -> bool {
    let is_waiting = containers(pod).any(|container| waiting(container).is_some());
    stays(pod) && phase(pod) == Some("Running") && !is_waiting
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
    let reason = printable_name(waiting.reason.as_deref().unwrap_or_default());
    let message = printable_message(waiting.message.as_deref().unwrap_or_default());
    Some((reason, message))
}

/// The last end with an error. Between its end and CrashLoopBackOff, the state itself is that of the end.
fn failed_exit(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let states = [&container.state, &container.last_state].into_iter().flatten();
    let mut exits = states.filter_map(|state| state.terminated.as_ref());
    exits.next().filter(|exit| exit.exit_code != 0)
}

/// The findings about all programs.
pub(crate) fn findings(programs: &[ProgramPods], now: Timestamp) -> Vec<CheckFinding> {
    let mut findings = Vec::new();
    for program in programs {
        let (severity, text) = replicas(program);
        let subject = program.program.as_str();
        findings.push(CheckFinding::new(severity, subject, "replicas", text));
        for pod in &program.pods {
            let (name, found) = match pod {
                Item::Ok(pod) => (name(pod), of_pod(pod, now)),
                Item::Malformed { name, reason } => {
                    let text = format!("cannot be read: {reason}");
                    (name.clone().unwrap_or_default(), vec![(Severity::Wrong, text)])
                }
            };
            let subject = format!("{} {name}", program.program);
            let found = found.into_iter();
            findings.extend(found.map(|(severity, text)| CheckFinding::new(severity, &subject, "pod", text)));
        }
    }
    findings
}

/// Compares the ready Pods with those that the Deployment asks for.
fn replicas(program: &ProgramPods) -> (Severity, String) {
    let (ready, effect) = (program.ready(), effect(program.program));
    let deployment = &program.deployment;
    let Some(desired) = program.desired else {
        let text = format!("the Deployment {deployment} does not exist{effect}");
        return (Severity::Wrong, text);
    };
    match usize::try_from(desired).unwrap_or_default() {
        0 => (
            Severity::Wrong,
            format!("the Deployment {deployment} is scaled to 0{effect}"),
        ),
        desired if ready >= desired => (Severity::Fine, format!("{ready} of {desired} are ready")),
        desired if ready > 0 => (Severity::Wrong, format!("{ready} of {desired} are ready")),
        desired => (Severity::Wrong, format!("0 of {desired} are ready{effect}")),
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

fn of_pod(pod: &Pod, now: Timestamp) -> Vec<(Severity, String)> {
    if !stays(pod) {
        return Vec::new();
    }
    if matches!(phase(pod), Some("Failed" | "Succeeded")) {
        let status = pod.status.iter();
        let why = status.flat_map(|status| [&status.reason, &status.message]);
        let why: Vec<&str> = why.flatten().map(String::as_str).collect();
        let why = printable_message(&why.join(": "));
        let text = format!("has ended for good: {why}; delete it");
        return vec![(Severity::Notice, text)];
    }
    if let Some(condition) = condition(pod, "PodScheduled").filter(|condition| condition.status == "False") {
        let why = condition.message.as_ref().or(condition.reason.as_ref());
        let why = printable_message(why.map_or("no reason is given", |why| why));
        return vec![(Severity::Wrong, format!("no node takes it: {why}"))];
    }
    containers(pod).filter_map(|one| of_container(one, now)).collect()
}

fn of_container(container: &ContainerStatus, now: Timestamp) -> Option<(Severity, String)> {
    if let Some(text) = crash(container, now) {
        return Some((Severity::Wrong, text));
    }
    match waiting(container) {
        // It was created a moment ago, or an init container runs.
        Some((reason, _)) if matches!(reason.as_str(), "ContainerCreating" | "PodInitializing") => {
            Some((Severity::Notice, format!("does not run yet: {reason}")))
        }
        Some((reason, message)) => {
            let colon = if message.is_empty() { "" } else { ": " };
            let text = format!("does not start: {reason}{colon}{message}");
            Some((Severity::Wrong, text))
        }
        None if container.restart_count > 0 => {
            let text = format!("{}, no crash within 10 minutes", restarts(container));
            Some((Severity::Notice, text))
        }
        None => None,
    }
}

/// Why a container crashes; none if it does not.
fn crash(container: &ContainerStatus, now: Timestamp) -> Option<String> {
    let exit = failed_exit(container);
    let ended = exit.and_then(|exit| exit.finished_at.as_ref());
    let ago = ended.map(|ended| text::passed(ended.0, now));
    let is_waiting = waiting(container).is_some_and(|(reason, _)| reason == "CrashLoopBackOff");
    let has_crashed = exit.is_some() && ago.is_none_or(|ago| ago < CRASHED_WITHIN);
    if !is_waiting && !has_crashed {
        return None;
    }
    let name = printable_name(&container.name);
    let mut out = format!("{name} crashes, {}", restarts(container));
    if is_waiting {
        out.push_str(", CrashLoopBackOff");
    }
    let Some(exit) = exit else {
        return Some(out);
    };
    out.push_str(&format!(", exit code {}", exit.exit_code));
    let reason = printable_name(exit.reason.as_deref().unwrap_or_default());
    if !reason.is_empty() && reason != "Error" {
        out.push_str(&format!(" ({reason})"));
    }
    if let Some(ago) = ago {
        out.push_str(&format!(" {} ago", text::duration(ago)));
    }
    match cause(exit.message.as_deref().unwrap_or_default()) {
        Some(cause) => out.push_str(&format!(": {cause}")),
        None => out.push_str("; kubectl logs --previous may say why"),
    }
    Some(out)
}

fn restarts(container: &ContainerStatus) -> String {
    text::count(i64::from(container.restart_count), "restart", "restarts")
}

/// Why a program ended, by the end of its log, which the chart makes the kubelet put into the status: its last error or
/// panic, else its last line.
fn cause(log: &str) -> Option<String> {
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<(bool, String)> = lines.map(log_line).collect();
    let error = lines.iter().rfind(|(is_error, _)| *is_error);
    let (_, sentence) = error.or(lines.last())?;
    Some(printable_message(sentence))
}

/// True if a line is about an error, and its message with that error, without the rest.
fn log_line(line: &str) -> (bool, String) {
    let Ok(fields) = serde_json::from_str::<Value>(line) else {
        let mut marks = ["error: ", " ERROR ", " panicked at "].into_iter();
        return (marks.any(|mark| line.contains(mark)), line.to_owned());
    };
    let text = |name: &str| fields.get(name)?.as_str().filter(|text| !text.is_empty());
    let sentence = match (text("message"), text("error").or_else(|| text("panic"))) {
        (Some(message), Some(error)) => format!("{message}: {error}"),
        (Some(message), None) => message.to_owned(),
        _ => line.to_owned(),
    };
    (text("level") == Some("ERROR"), sentence)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
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

    /// With the end of its log.
    fn crashing(seconds_ago: i64, waiting: Option<&str>, log: &str) -> Pod {
        let at = Timestamp::from_second(testing::NOW - seconds_ago).unwrap();
        pod("b", |pod| {
            let container = &mut pod["status"]["containerStatuses"][0];
            container["restartCount"] = 7.into();
            let end = json!({"exitCode": 2, "reason": "Error", "finishedAt": at.to_string(), "message": log});
            container["lastState"] = json!({"terminated": end});
            if let Some(reason) = waiting {
                container["state"] = json!({"waiting": {"reason": reason, "message": "back-off 5m0s"}});
            }
        })
    }

    const LOG: &str = r#"{"level":"ERROR","message":"cannot start","error":"no such file"}"#;

    fn found(desired: Option<i32>, pods: Vec<Pod>) -> Vec<(Severity, String)> {
        let program = ProgramPods {
            program: Program::Weeder,
            deployment: "garden/watchdog-weeder".to_owned(),
            desired,
            pods: pods.into_iter().map(Item::Ok).collect(),
        };
        let found = findings(&[program], testing::pipe().now).into_iter();
        let shown =
            |finding: CheckFinding| (finding.severity, format!("{}: {}", finding.subject, finding.text));
        found.map(shown).collect()
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
        let why = ": cannot start: no such file";
        let unknown = "; kubectl logs --previous may say why";
        // Also while it runs between two crashes, and beside enough ready replicas.
        for (waiting, log, loops, why) in [
            (Some("CrashLoopBackOff"), LOG, ", CrashLoopBackOff", why),
            (None, LOG, "", why),
            (None, "\n \n", "", unknown),
        ] {
            let found = found(Some(1), vec![ready("a"), crashing(40, waiting, log)]);
            let text = format!("weeder b: weeder crashes, 7 restarts{loops}, exit code 2 40s ago{why}");
            assert_eq!(found[1], (Severity::Wrong, text));
        }
        let long_ago = found(Some(1), vec![crashing(3_600, None, LOG)]);
        let text = "weeder b: 7 restarts, no crash within 10 minutes".to_owned();
        assert_eq!(long_ago[1], (Severity::Notice, text));
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
                "thread 'main' panicked at src/a.rs:1:2:",
            ),
            (
                "{\"level\":\"ERROR\",\"message\":\"a thread panicked\",\"panic\":\"index out of bounds\"}",
                "a thread panicked: index out of bounds",
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
