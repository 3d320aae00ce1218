//! `weeders` and `services`

use watchdog_proto::weeder::v1::{
    DeletionResult, EndpointReadiness, LeftAlone, ListEndpointReadinessRequest,
    ListEndpointReadinessResponse, ListWeedersRequest, ListWeedersResponse, PodDeletion, Readiness,
    ServiceKey, Weeder, WeederState,
};

use super::CommandAnswer;
use crate::api_message::ApiMessage;
use crate::args::ServiceFilterArgs;
use crate::connect::ProgramDialer;
use crate::error::CommandError;
use crate::fetch::{self, all_pages};
use crate::program::Program;
use crate::render::table::{Cell, Style, TextTable};
use crate::render::{self, Frame, text};

pub(crate) type Weeders = ApiMessage<ListWeedersResponse>;
pub(crate) type EndpointServices = ApiMessage<ListEndpointReadinessResponse>;

pub(crate) async fn weeders(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
) -> Result<Weeders, CommandError> {
    let client = dialer.weeder().await?;
    let pages = all_pages(async |page_size, page_token| {
        let request = ListWeedersRequest {
            page_size,
            page_token,
            namespace: filter.shoot.clone().unwrap_or_default(),
            service: filter.service.clone().unwrap_or_default(),
            ..ListWeedersRequest::default()
        };
        fetch::ask(Program::Weeder, client.list_weeders(request)).await
    });
    pages.await.map(ApiMessage)
}

pub(crate) async fn services(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
) -> Result<EndpointServices, CommandError> {
    let client = dialer.weeder().await?;
    let pages = all_pages(async |page_size, page_token| {
        let request = ListEndpointReadinessRequest {
            page_size,
            page_token,
            namespace: filter.shoot.clone().unwrap_or_default(),
            service: filter.service.clone().unwrap_or_default(),
            ..ListEndpointReadinessRequest::default()
        };
        fetch::ask(Program::Weeder, client.list_endpoint_readiness(request)).await
    });
    pages.await.map(ApiMessage)
}

impl CommandAnswer for Weeders {
    /// One row for each weeder, then its deletions and the pods that it leaves alone.
    fn text(&self, frame: &Frame) -> String {
        let missing = fetch::missing(Program::Weeder, self.completeness.as_ref());
        let mut out = render::missing(&missing, frame);
        if self.weeders.is_empty() {
            return out + "No weeder is active: no service became ready recently.\n";
        }
        let table = TextTable::of(&self.weeders)
            .column("SHOOT", |weeder| namespace(weeder.key.as_ref()))
            .column("SERVICE", |weeder| service(weeder.key.as_ref()))
            .column("STATE", |weeder| state(weeder.state()))
            .column("STARTED", |weeder| text::since(weeder.start_time, frame.now))
            .column("REMAINING", |weeder| text::sent_duration(weeder.remaining))
            .column("DELETED", |weeder| weeder.deleted.to_string())
            .column("LEFT ALONE", |weeder| weeder.left_alone.len().to_string())
            .column("MESSAGE", |weeder| weeder.message.clone());
        out.push_str(&table.render(frame));
        for more in [deletions(&self.weeders, frame), left_alone(&self.weeders, frame)] {
            if !more.is_empty() {
                out.push_str(&format!("\n{more}"));
            }
        }
        out
    }
}

fn state(state: WeederState) -> Cell {
    let style = match state {
        WeederState::Active => Style::Warn,
        _ => Style::Plain,
    };
    let state = text::bare(state.as_str_name(), "WEEDER_STATE_").to_lowercase();
    Cell::styled(style, state)
}

fn deletions(weeders: &[Weeder], frame: &Frame) -> String {
    let all = weeders.iter();
    let rows = all.flat_map(|weeder| weeder.deletions.iter().map(move |deletion| (weeder, deletion)));
    TextTable::of(rows)
        .column("SHOOT", |(weeder, _)| namespace(weeder.key.as_ref()))
        .column("POD", |(_, deletion)| deletion.pod.clone())
        .column("WHEN", |(_, deletion)| {
            text::since(deletion.delete_time, frame.now)
        })
        .column("RESULT", |(_, deletion)| result(deletion))
        .column("CONTAINER", |(_, deletion)| deletion.container.clone())
        .column("EXIT", |(_, deletion)| {
            exit(deletion.exit_code, &deletion.exit_reason)
        })
        .column("RESTARTS", |(_, deletion)| deletion.restart_count.to_string())
        .column("WHY", |(_, deletion)| deletion.message.clone())
        .render_rows(frame)
}

fn result(deletion: &PodDeletion) -> Cell {
    let result = text::bare(deletion.result().as_str_name(), "DELETION_RESULT_").to_lowercase();
    match (deletion.result(), deletion.useless) {
        (DeletionResult::Refused, _) => Cell::styled(Style::Bad, result),
        (_, true) => Cell::styled(Style::Warn, format!("{result}, useless")),
        _ => result.into(),
    }
}

fn left_alone(weeders: &[Weeder], frame: &Frame) -> String {
    let reason = |pod: &LeftAlone| text::bare(pod.reason().as_str_name(), "KEEP_REASON_").to_lowercase();
    let all = weeders.iter();
    let rows = all.flat_map(|weeder| weeder.left_alone.iter().map(move |pod| (weeder, pod)));
    TextTable::of(rows)
        .column("SHOOT", |(weeder, _)| namespace(weeder.key.as_ref()))
        .column("LEFT ALONE", |(_, pod)| pod.pod.clone())
        .column("CONTAINER", |(_, pod)| pod.container.clone())
        .column("SINCE", |(_, pod)| text::since(pod.decide_time, frame.now))
        .column("REASON", |(_, pod)| reason(pod))
        .column("EXIT", |(_, pod)| exit(pod.exit_code, &pod.exit_reason))
        .column("TERMINATION MESSAGE", |(_, pod)| pod.exit_message.clone())
        .render_rows(frame)
}

fn exit(code: Option<i32>, reason: &str) -> String {
    format!("{} {reason}", text::shown(code)).trim_end().to_owned()
}

impl CommandAnswer for EndpointServices {
    /// One row for each service; those that are not ready first.
    fn text(&self, frame: &Frame) -> String {
        let missing = fetch::missing(Program::Weeder, self.completeness.as_ref());
        let out = render::missing(&missing, frame);
        if self.services.is_empty() {
            return out + "No service of the configuration has endpoints.\n";
        }
        let mut ordered: Vec<&EndpointReadiness> = self.services.iter().collect();
        ordered.sort_by_key(|service| service.readiness() == Readiness::Ready);
        let table = TextTable::of(ordered)
            .column("SHOOT", |one| namespace(one.key.as_ref()))
            .column("SERVICE", |one| service(one.key.as_ref()))
            .column("READINESS", |one| readiness(one.readiness()))
            .column("ENDPOINTS", |one| {
                format!("{}/{}", one.ready_endpoints, one.endpoints)
            })
            .column("SINCE", |one| text::since(one.readiness_change_time, frame.now))
            .column("OBSERVER", |one| one.observer.clone());
        out + &table.render(frame)
    }
}

fn readiness(readiness: Readiness) -> Cell {
    let style = match readiness {
        Readiness::Ready => Style::Good,
        _ => Style::Bad,
    };
    Cell::styled(style, text::bare(readiness.as_str_name(), "READINESS_"))
}

fn namespace(key: Option<&ServiceKey>) -> String {
    key.map_or_else(|| "?".to_owned(), |key| key.namespace.clone())
}

fn service(key: Option<&ServiceKey>) -> String {
    key.map_or_else(|| "?".to_owned(), |key| key.service.clone())
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

    fn shown(weeders: Vec<Weeder>) -> String {
        let answer = ListWeedersResponse {
            weeders,
            ..ListWeedersResponse::default()
        };
        ApiMessage(answer).text(&testing::pipe())
    }

    fn shown_services(services: Vec<EndpointReadiness>) -> String {
        let answer = ListEndpointReadinessResponse {
            services,
            ..ListEndpointReadinessResponse::default()
        };
        ApiMessage(answer).text(&testing::pipe())
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
        let text = shown(vec![weeder]);
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
        let pod = LeftAlone {
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
        let text = shown(vec![weeder]);
        assert!(
            text.contains("5s (00:39:55Z)  younger_than_recovery  137 OOMKilled  out of memory\n")
                && text.contains("shoot--a--b  kube-scheduler-0  main "),
            "{text}"
        );
        assert!(text.contains("refused"), "{text}");
        assert!(shown(Vec::new()).starts_with("No weeder is active"));
        assert!(shown_services(Vec::new()).starts_with("No service of the configuration"));
    }

    #[test]
    fn a_service_that_is_not_ready_comes_first() {
        let service = |name, readiness: Readiness| EndpointReadiness {
            key: key(name),
            readiness: readiness.into(),
            ..Default::default()
        };
        let text = shown_services(vec![
            service("etcd", Readiness::Ready),
            service("kube-apiserver", Readiness::NotReady),
        ]);
        assert!(text.find("NOT_READY") < text.find("etcd"), "{text}");
    }
}
