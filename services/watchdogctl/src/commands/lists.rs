//! `verdicts`, `scaling`, `weeders` and `services`: messages of the API as tables, a row for each.

use watchdog_proto::probe::v1::{ListVerdictsRequest, ListVerdictsResponse};
use watchdog_proto::scaling::v1::{ListScalingRequest, ListScalingResponse, ShootScaling};
use watchdog_proto::weeder::v1::{
    DeletionResult, EndpointReadiness, ListEndpointReadinessRequest, ListEndpointReadinessResponse,
    ListWeedersRequest, ListWeedersResponse, PodDeletion, Readiness, ServiceKey, Weeder,
};

use super::WrittenAnswer;
use crate::api_message::ApiMessage;
use crate::args::{ScalingArgs, ServiceFilterArgs, VerdictsArgs};
use crate::connect::ProgramDialer;
use crate::error::CommandResult;
use crate::program::Program;
use crate::render::table::{Cell, TextTable};
use crate::render::{Format, Frame, Style, cells, incomplete, text};

pub(crate) async fn verdicts(
    dialer: &ProgramDialer,
    args: &VerdictsArgs,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    let request = ListVerdictsRequest {
        outcomes: args.outcome.iter().map(|one| (*one).into()).collect(),
        ..ListVerdictsRequest::default()
    };
    let get = async |shoot: &str| {
        let answer = dialer.verdict(shoot).await?;
        Ok((answer.verdict, answer.completeness))
    };
    let list = dialer
        .items(Program::LeaseProbe, &args.shoots, request, get)
        .await?;
    Ok(WrittenAnswer {
        headline: format!("{} verdicts", list.total_size),
        ..WrittenAnswer::of(frame, verdict_table(&list, frame), ApiMessage(list))?
    })
}

/// A wide table also has who observed the verdict and the sentence.
fn verdict_table(list: &ListVerdictsResponse, frame: &Frame) -> String {
    let wide = frame.format == Format::Wide;
    let table = TextTable::of(&list.verdicts)
        .column("SHOOT", |verdict| verdict.shoot.clone())
        .verdict_columns(frame, |verdict| Some(verdict))
        .column_if(wide, "OBSERVER", |verdict| verdict.observer.clone())
        .column_if(wide, "AGE", |verdict| text::sent_duration(verdict.age))
        .column_if(wide, "MESSAGE", |verdict| verdict.message.clone());
    incomplete(Program::LeaseProbe, list.completeness.as_ref(), frame) + &table.render(frame)
}

pub(crate) async fn scaling(
    dialer: &ProgramDialer,
    args: &ScalingArgs,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    let request = ListScalingRequest {
        directions: args.direction.iter().map(|one| (*one).into()).collect(),
        ..ListScalingRequest::default()
    };
    let get = async |shoot: &str| {
        let answer = dialer.scaling(shoot).await?;
        Ok((answer.scaling, answer.completeness))
    };
    let list = dialer
        .items(Program::ScalingCoordinator, &args.shoots, request, get)
        .await?;
    Ok(WrittenAnswer {
        headline: format!("{} shoots", list.total_size),
        ..WrittenAnswer::of(frame, scaling_table(&list, frame), ApiMessage(list))?
    })
}

/// A wide table also has the replica that reports the scaling and the reason.
fn scaling_table(list: &ListScalingResponse, frame: &Frame) -> String {
    let wide = frame.format == Format::Wide;
    let table = TextTable::of(&list.scalings)
        .column("SHOOT", |scaling| scaling.shoot.clone())
        .column("DIRECTION", |scaling| {
            cells::value(scaling.direction().as_str_name())
        })
        .column("SINCE", |scaling| frame.since(scaling.direction_change_time))
        .column("STATE", |scaling| cells::value(scaling.state().as_str_name()))
        .column("LEVEL", |scaling| text::shown(scaling.level))
        .column("HELD DOWN", |scaling| held_down(scaling))
        .column_if(wide, "REPLICA", |scaling| scaling.replica.clone())
        .column_if(wide, "REASON", |scaling| scaling.reason.clone())
        .column("WAITS FOR", |scaling| cells::waits_for(scaling));
    incomplete(Program::ScalingCoordinator, list.completeness.as_ref(), frame) + &table.render(frame)
}

const fn held_down(scaling: &ShootScaling) -> &'static str {
    if scaling.meltdown_protection_active {
        "yes"
    } else {
        "-"
    }
}

pub(crate) async fn weeders(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    let request = ListWeedersRequest {
        namespace: filter.shoot.clone().unwrap_or_default(),
        service: filter.service.clone().unwrap_or_default(),
        ..ListWeedersRequest::default()
    };
    let list = dialer.all_pages(Program::Weeder, request).await?;
    WrittenAnswer::of(frame, weeder_tables(&list, filter, frame), ApiMessage(list))
}

pub(crate) async fn services(
    dialer: &ProgramDialer,
    filter: &ServiceFilterArgs,
    frame: &Frame,
) -> CommandResult<WrittenAnswer> {
    let request = ListEndpointReadinessRequest {
        namespace: filter.shoot.clone().unwrap_or_default(),
        service: filter.service.clone().unwrap_or_default(),
        ..ListEndpointReadinessRequest::default()
    };
    let list = dialer.all_pages(Program::Weeder, request).await?;
    WrittenAnswer::of(frame, service_table(&list, filter, frame), ApiMessage(list))
}

/// The filter in words: nothing may match because a name is misspelt.
fn matching(filter: &ServiceFilterArgs) -> String {
    let shoot = filter.shoot.iter().map(|shoot| format!(" in shoot {shoot}"));
    let service = filter
        .service
        .iter()
        .map(|service| format!(" for service {service}"));
    shoot.chain(service).collect()
}

/// One row for each weeder, then its deletions and the pods that it leaves alone.
fn weeder_tables(list: &ListWeedersResponse, filter: &ServiceFilterArgs, frame: &Frame) -> String {
    let out = incomplete(Program::Weeder, list.completeness.as_ref(), frame);
    if list.weeders.is_empty() {
        let matching = matching(filter);
        return out + &format!("No weeder{matching} is active: no service became ready recently.\n");
    }
    let table = TextTable::of(&list.weeders)
        .column("SHOOT", |weeder| namespace(weeder.key.as_ref()))
        .column("SERVICE", |weeder| service(weeder.key.as_ref()))
        .column("STATE", |weeder| cells::value(weeder.state().as_str_name()))
        .column("STARTED", |weeder| frame.since(weeder.start_time))
        .column("REMAINING", |weeder| text::sent_duration(weeder.remaining))
        .column("DELETED", |weeder| weeder.deleted.to_string())
        .column("LEFT ALONE", |weeder| weeder.left_alone.len().to_string())
        .column("MESSAGE", |weeder| weeder.message.clone());
    let more = deletions(&list.weeders, frame) + &left_alone(&list.weeders, frame);
    out + &table.render(frame) + &more
}

fn deletions(weeders: &[Weeder], frame: &Frame) -> String {
    let all = weeders.iter();
    let rows = all.flat_map(|weeder| weeder.deletions.iter().map(move |deletion| (weeder, deletion)));
    TextTable::of(rows)
        .column("SHOOT", |(weeder, _)| namespace(weeder.key.as_ref()))
        .column("POD", |(_, deletion)| deletion.pod.clone())
        .column("WHEN", |(_, deletion)| frame.since(deletion.delete_time))
        .column("RESULT", |(_, deletion)| result(deletion))
        .column("CONTAINER", |(_, deletion)| deletion.container.clone())
        .column("EXIT", |(_, deletion)| {
            exit(deletion.exit_code, &deletion.exit_reason)
        })
        .column("RESTARTS", |(_, deletion)| deletion.restart_count.to_string())
        .column("WHY", |(_, deletion)| deletion.message.clone())
        .after("\n", frame)
}

fn result(deletion: &PodDeletion) -> Cell {
    let result = deletion.result();
    if deletion.useless && result != DeletionResult::Refused {
        let result = text::value(result.as_str_name());
        return Cell::styled(Style::Warn, format!("{result}, useless"));
    }
    cells::value(result.as_str_name())
}

fn left_alone(weeders: &[Weeder], frame: &Frame) -> String {
    let all = weeders.iter();
    let rows = all.flat_map(|weeder| weeder.left_alone.iter().map(move |pod| (weeder, pod)));
    TextTable::of(rows)
        .column("SHOOT", |(weeder, _)| namespace(weeder.key.as_ref()))
        .column("LEFT ALONE", |(_, pod)| pod.pod.clone())
        .column("CONTAINER", |(_, pod)| pod.container.clone())
        .column("SINCE", |(_, pod)| frame.since(pod.decide_time))
        .column("REASON", |(_, pod)| cells::value(pod.reason().as_str_name()))
        .column("EXIT", |(_, pod)| exit(pod.exit_code, &pod.exit_reason))
        .column("TERMINATION MESSAGE", |(_, pod)| pod.exit_message.clone())
        .after("\n", frame)
}

fn exit(code: Option<i32>, reason: &str) -> String {
    format!("{} {reason}", text::shown(code)).trim_end().to_owned()
}

/// One row for each service; those that are not ready first.
fn service_table(list: &ListEndpointReadinessResponse, filter: &ServiceFilterArgs, frame: &Frame) -> String {
    let out = incomplete(Program::Weeder, list.completeness.as_ref(), frame);
    if list.services.is_empty() {
        let matching = matching(filter);
        return out + &format!("No service of the configuration{matching} has endpoints.\n");
    }
    let mut ordered: Vec<&EndpointReadiness> = list.services.iter().collect();
    ordered.sort_by_key(|service| service.readiness() == Readiness::Ready);
    let table = TextTable::of(ordered)
        .column("SHOOT", |one| namespace(one.key.as_ref()))
        .column("SERVICE", |one| service(one.key.as_ref()))
        .column("READINESS", |one| cells::value(one.readiness().as_str_name()))
        .column("ENDPOINTS", |one| {
            format!("{}/{}", one.ready_endpoints, one.endpoints)
        })
        .column("SINCE", |one| frame.since(one.readiness_change_time))
        .column("OBSERVER", |one| one.observer.clone());
    out + &table.render(frame)
}

fn namespace(key: Option<&ServiceKey>) -> String {
    key.map_or_else(|| "?".to_owned(), |key| key.namespace.clone())
}

fn service(key: Option<&ServiceKey>) -> String {
    key.map_or_else(|| "?".to_owned(), |key| key.service.clone())
}

#[cfg(test)]
mod tests {
    use watchdog_client::message::COMPLETE;
    use watchdog_proto::probe::v1::{Outcome, SkipReason, Verdict};
    use watchdog_proto::weeder::v1::{LeftAlone, WeederState};

    use super::*;
    use crate::render::testing;

    #[test]
    fn wide_adds_the_observer_and_the_sentence() {
        let skipped = Verdict {
            skip_reason: SkipReason::Hibernating.into(),
            evidence: None,
            ..testing::verdict("shoot--a--c", Outcome::Skipped)
        };
        let verdicts = vec![testing::verdict("shoot--a--b", Outcome::LeasesExpired), skipped];
        let list = ListVerdictsResponse {
            verdicts,
            completeness: Some(COMPLETE),
            ..ListVerdictsResponse::default()
        };
        assert_eq!(
            verdict_table(&list, &testing::pipe()),
            "\
SHOOT        OUTCOME              EXPIRED      SINCE              VALID
shoot--a--b  LEASES_EXPIRED       100 % (6/6)  2m10s (00:37:50Z)  12s
shoot--a--c  SKIPPED HIBERNATING  -            2m10s (00:37:50Z)  -
"
        );
        let wide = verdict_table(&list, &testing::wide());
        assert!(
            wide.contains("12s    lease-probe-0  1s   A sentence.\n"),
            "{wide}"
        );
    }

    #[test]
    fn a_row_says_where_a_shoot_goes() {
        let list = ListScalingResponse {
            scalings: vec![testing::scaling_down("shoot--a--b")],
            ..ListScalingResponse::default()
        };
        let expected = "\
SHOOT        DIRECTION  SINCE              STATE    LEVEL  HELD DOWN  WAITS FOR
shoot--a--b  down       2m09s (00:37:51Z)  running  1      yes        kube-controller-manager WAITING: \
    It has 1 ready replica.
";
        assert_eq!(scaling_table(&list, &testing::pipe()), expected);
        let wide = scaling_table(&list, &testing::wide());
        assert!(
            wide.contains("scaling-coordinator-0  The nodes are cut off.  "),
            "{wide}"
        );
    }

    fn key(service: &str) -> Option<ServiceKey> {
        Some(ServiceKey {
            namespace: "shoot--a--b".to_owned(),
            service: service.to_owned(),
        })
    }

    fn shown(weeders: Vec<Weeder>) -> String {
        let list = ListWeedersResponse {
            weeders,
            ..ListWeedersResponse::default()
        };
        weeder_tables(&list, &ServiceFilterArgs::default(), &testing::pipe())
    }

    fn shown_services(services: Vec<EndpointReadiness>) -> String {
        let list = ListEndpointReadinessResponse {
            services,
            ..ListEndpointReadinessResponse::default()
        };
        service_table(&list, &ServiceFilterArgs::default(), &testing::pipe())
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
    fn an_empty_answer_repeats_the_filter() {
        let filter = ServiceFilterArgs {
            shoot: Some("shoot--a--c".to_owned()),
            service: Some("etcd".to_owned()),
        };
        let of_filter = " in shoot shoot--a--c for service etcd ";
        let weeders = weeder_tables(&ListWeedersResponse::default(), &filter, &testing::pipe());
        assert!(weeders.contains(of_filter), "{weeders}");
        let list = ListEndpointReadinessResponse::default();
        let services = service_table(&list, &filter, &testing::pipe());
        assert!(services.contains(of_filter), "{services}");
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
