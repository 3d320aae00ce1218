//! Weeders and the services that they watch.

use watchdog_proto::weeder::v1::{
    DeletionResult, EndpointReadiness, PodDeletion, Readiness, ServiceKey, Weeder, WeederState,
};

use super::table::{Cell, Style, TextTable};
use super::{Frame, text};

/// One row for each weeder, each with its deletions and the pods that it leaves alone.
pub(crate) fn weeders(weeders: &[Weeder], frame: &Frame) -> String {
    if weeders.is_empty() {
        return "No weeder is active: no service became ready recently.\n".to_owned();
    }
    let mut table = TextTable::new([
        "SHOOT",
        "SERVICE",
        "STATE",
        "STARTED",
        "REMAINING",
        "DELETED",
        "LEFT ALONE",
        "MESSAGE",
    ]);
    for weeder in weeders {
        let (namespace, service) = name(weeder.key.as_ref());
        let style = match weeder.state() {
            WeederState::Active => Style::Warn,
            _ => Style::Plain,
        };
        table.row([
            namespace.into(),
            service.into(),
            Cell::styled(
                style,
                text::bare(weeder.state().as_str_name(), "WEEDER_STATE_").to_lowercase(),
            ),
            text::since(weeder.start_time.as_ref(), frame.now).into(),
            text::sent_duration(weeder.remaining.as_ref()).into(),
            weeder.deleted.to_string().into(),
            weeder.left_alone.len().to_string().into(),
            weeder.message.as_str().into(),
        ]);
    }
    let mut out = table.render(frame);
    out.push_str(&deletions(weeders, frame));
    out.push_str(&left_alone(weeders, frame));
    out
}

fn deletions(weeders: &[Weeder], frame: &Frame) -> String {
    let mut table = TextTable::new([
        "SHOOT",
        "POD",
        "WHEN",
        "RESULT",
        "CONTAINER",
        "EXIT",
        "RESTARTS",
        "WHY",
    ]);
    for weeder in weeders {
        let (namespace, _) = name(weeder.key.as_ref());
        for deletion in &weeder.deletions {
            table.row(deletion_cells(namespace, deletion, frame));
        }
    }
    if table.is_empty() {
        return String::new();
    }
    format!("\n{}", table.render(frame))
}

fn deletion_cells(namespace: &str, deletion: &PodDeletion, frame: &Frame) -> Vec<Cell> {
    let result = text::bare(deletion.result().as_str_name(), "DELETION_RESULT_").to_lowercase();
    let (style, result) = match (deletion.result(), deletion.useless) {
        (DeletionResult::Refused, _) => (Style::Bad, result),
        (_, true) => (Style::Warn, format!("{result}, useless")),
        _ => (Style::Plain, result),
    };
    let exit = [
        deletion
            .exit_code
            .map(|code| code.to_string())
            .unwrap_or_default(),
        deletion.exit_reason.clone(),
    ];
    vec![
        namespace.into(),
        deletion.pod.as_str().into(),
        text::since(deletion.delete_time.as_ref(), frame.now).into(),
        Cell::styled(style, result),
        deletion.container.as_str().into(),
        exit.join(" ").trim().into(),
        deletion.restart_count.to_string().into(),
        deletion.message.as_str().into(),
    ]
}

fn left_alone(weeders: &[Weeder], frame: &Frame) -> String {
    let mut table = TextTable::new([
        "SHOOT",
        "LEFT ALONE",
        "CONTAINER",
        "SINCE",
        "REASON",
        "EXIT",
        "TERMINATION MESSAGE",
    ]);
    for weeder in weeders {
        let (namespace, _) = name(weeder.key.as_ref());
        for pod in &weeder.left_alone {
            let reason = text::bare(pod.reason().as_str_name(), "KEEP_REASON_").to_lowercase();
            let exit = format!("{} {}", text::number(pod.exit_code), pod.exit_reason);
            table.row([
                namespace.into(),
                pod.pod.as_str().into(),
                pod.container.as_str().into(),
                text::since(pod.decide_time.as_ref(), frame.now).into(),
                reason.into(),
                exit.trim().into(),
                pod.exit_message.as_str().into(),
            ]);
        }
    }
    if table.is_empty() {
        return String::new();
    }
    format!("\n{}", table.render(frame))
}

/// One row for each service; those that are not ready first.
pub(crate) fn services(services: &[EndpointReadiness], frame: &Frame) -> String {
    if services.is_empty() {
        return "No service of the configuration has endpoints.\n".to_owned();
    }
    let mut ordered: Vec<&EndpointReadiness> = services.iter().collect();
    ordered.sort_by_key(|service| service.readiness() == Readiness::Ready);
    let mut table = TextTable::new(["SHOOT", "SERVICE", "READINESS", "ENDPOINTS", "SINCE", "OBSERVER"]);
    for service in ordered {
        let (namespace, name) = name(service.key.as_ref());
        let style = match service.readiness() {
            Readiness::Ready => Style::Good,
            _ => Style::Bad,
        };
        let readiness = text::bare(service.readiness().as_str_name(), "READINESS_");
        table.row([
            namespace.into(),
            name.into(),
            Cell::styled(style, readiness),
            format!("{}/{}", service.ready_endpoints, service.endpoints).into(),
            text::since(service.readiness_change_time.as_ref(), frame.now).into(),
            service.observer.as_str().into(),
        ]);
    }
    table.render(frame)
}

fn name(key: Option<&ServiceKey>) -> (&str, &str) {
    key.map_or(("?", "?"), |key| (&key.namespace, &key.service))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing;

    fn key(service: &str) -> Option<ServiceKey> {
        Some(ServiceKey {
            namespace: "shoot--a--b".to_owned(),
            service: service.to_owned(),
        })
    }

    #[test]
    fn a_weeder_shows_what_it_deleted_and_why() {
        let deletion = PodDeletion {
            pod: "cm-0".to_owned(),
            container: "main".to_owned(),
            restart_count: 3,
            exit_code: Some(1),
            exit_reason: "Error".to_owned(),
            result: DeletionResult::Deleted.into(),
            useless: true,
            delete_time: testing::ago(5),
            message: "Crashed.".to_owned(),
            ..Default::default()
        };
        let weeder = Weeder {
            key: key("kube-apiserver"),
            state: WeederState::Active.into(),
            start_time: testing::ago(10),
            remaining: testing::seconds(50),
            deleted: 1,
            deletions: vec![deletion],
            message: "Deletes.".to_owned(),
            ..Default::default()
        };
        let text = weeders(&[weeder], &testing::pipe());
        assert!(
            text.contains("shoot--a--b  kube-apiserver  active  10s (00:39:50Z)  50s"),
            "{text}"
        );
        assert!(
            text.contains("cm-0  5s (00:39:55Z)  deleted, useless  main       1 Error  3"),
            "{text}"
        );
    }

    #[test]
    fn a_pod_that_is_left_alone_shows_how_it_exited() {
        let pod = watchdog_proto::weeder::v1::LeftAlone {
            pod: "kube-scheduler-0".to_owned(),
            container: "main".to_owned(),
            exit_code: Some(137),
            exit_reason: "OOMKilled".to_owned(),
            exit_message: "out of memory".to_owned(),
            decide_time: testing::ago(5),
            reason: watchdog_proto::weeder::v1::KeepReason::YoungerThanRecovery.into(),
            ..Default::default()
        };
        let refused = PodDeletion {
            pod: "cm-0".to_owned(),
            result: DeletionResult::Refused.into(),
            ..Default::default()
        };
        let weeder = Weeder {
            key: key("kube-apiserver"),
            left_alone: vec![pod],
            deletions: vec![refused],
            ..Default::default()
        };
        let text = weeders(&[weeder], &testing::pipe());
        assert!(
            text.contains("5s (00:39:55Z)  younger_than_recovery  137 OOMKilled  out of memory\n")
                && text.contains("shoot--a--b  kube-scheduler-0  main "),
            "{text}"
        );
        assert!(text.contains("refused"), "{text}");
        assert!(weeders(&[], &testing::pipe()).starts_with("No weeder is active"));
        assert!(services(&[], &testing::pipe()).starts_with("No service of the configuration"));
    }

    #[test]
    fn a_service_that_is_not_ready_comes_first() {
        let service = |name, readiness: Readiness| EndpointReadiness {
            key: key(name),
            readiness: readiness.into(),
            ..Default::default()
        };
        let text = services(
            &[
                service("etcd", Readiness::Ready),
                service("kube-apiserver", Readiness::NotReady),
            ],
            &testing::pipe(),
        );
        assert!(text.find("NOT_READY") < text.find("etcd"), "{text}");
    }
}
