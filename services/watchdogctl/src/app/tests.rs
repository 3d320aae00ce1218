//! Every command against programs whose answers are set: what it shows, and how it fails.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, Value};
use tonic::Status;
use watchdog_api::text::is_printable;
use watchdog_proto::probe::v1::{Outcome, Replica, ReplicaState};
use watchdog_proto::scaling::v1::{
    Direction, FlowState, Incident, Mode, PlanScalingResponse, ScaleTimes, ShootScaling,
};
use watchdog_proto::weeder::v1::{EndpointReadiness, Readiness, ServiceKey, Weeder};

use crate::render::testing as states;
use crate::testing::stub_services::{Answers, StubServer, StubServices};
use crate::testing::{
    Recording, assert_parts, closed_address, fails, json, options, run, running, shown, until,
};

const CUT_OFF: &str = "shoot--a--cut-off";
const RETURNING: &str = "shoot--a--returning";
const SILENT: &str = "shoot--a--silent";

/// One shoot is held down, one is scaled up again, one gives no verdict while it is held, one is healthy.
fn incident() -> Answers {
    let scaling = |shoot: &str, direction: Direction, state: FlowState| ShootScaling {
        direction: direction.into(),
        state: state.into(),
        ..states::settled(shoot)
    };
    let key = |namespace: &str, service: &str| {
        Some(ServiceKey {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
        })
    };
    let service = |namespace, name| EndpointReadiness {
        key: key(namespace, name),
        readiness: Readiness::Ready.into(),
        observer: "weeder-0".to_owned(),
        ..Default::default()
    };
    let weeder = |namespace| Weeder {
        key: key(namespace, "kube-apiserver"),
        ..Default::default()
    };
    Answers {
        verdicts: vec![
            states::verdict(CUT_OFF, Outcome::LeasesExpired),
            states::verdict(RETURNING, Outcome::Healthy),
            states::verdict(SILENT, Outcome::ApiServerUnreachable),
            states::verdict("shoot--a--well", Outcome::Healthy),
        ],
        scalings: vec![
            ShootScaling {
                mode: Mode::Protect.into(),
                incident: Some(Incident {
                    outcome: Outcome::LeasesExpired.into(),
                    start_time: states::ago(60),
                    scaled_down: 2,
                    reason: "A sentence.".to_owned(),
                    last_error: "A refusal.".to_owned(),
                    scale_times: vec![ScaleTimes::default()],
                    ..Default::default()
                }),
                ..states::scaling_down(CUT_OFF)
            },
            scaling(RETURNING, Direction::Up, FlowState::Running),
            scaling(SILENT, Direction::Hold, FlowState::Settled),
            ShootScaling {
                mode: Mode::Observe.into(),
                ..states::settled("shoot--a--well")
            },
        ],
        plan: PlanScalingResponse {
            allowed: true,
            reason: "The verdict is valid.".to_owned(),
            ..Default::default()
        },
        weeders: [CUT_OFF, RETURNING, SILENT].map(weeder).to_vec(),
        services: vec![
            service(CUT_OFF, "kube-apiserver"),
            service(CUT_OFF, "etcd-main-client"),
            service(SILENT, "kube-apiserver"),
        ],
        metadata: vec![
            ("watchdog-replica", "replica-0".to_owned()),
            ("watchdog-version", env!("CARGO_PKG_VERSION").to_owned()),
        ],
        ..Answers::default()
    }
}

/// The programs, and the options that name them.
async fn start(answers: Answers) -> (StubServices, StubServer, String) {
    let services = StubServices::new(answers);
    let server = services.serve().await;
    let options = options(&server.address);
    (services, server, options)
}

/// The line about a shoot.
fn line<'a>(text: &'a str, shoot: &str) -> &'a str {
    let found = text.lines().find(|line| line.starts_with(shoot));
    found.unwrap_or_else(|| panic!("{shoot} is not in {text}"))
}

#[tokio::test]
async fn status_joins_verdicts_and_scaling_of_the_shoots_that_need_attention() {
    let (services, _server, options) = start(incident()).await;
    let status = shown(&format!("{options} status")).await;
    let counts = "4 shoots: 1 LEASES_EXPIRED, 1 API_SERVER_UNREACHABLE, 2 HEALTHY; 1 held down\n";
    assert_parts(&status, &[counts, "Shoots that are not protected: 1\n"]);
    for (shoot, parts) in [
        (CUT_OFF, ["LEASES_EXPIRED  ", "  down  "]),
        // Its verdict is among those of healthy shoots, which are only counted.
        (RETURNING, ["HEALTHY  ", "  up  "]),
        // Its scaling is among those that are neither running nor down.
        (SILENT, ["API_SERVER_UNREACHABLE  ", "  hold  "]),
        ("shoot--a--well", ["observe  ", "default of the seed"]),
    ] {
        assert_parts(line(&status, shoot), &parts);
    }
    assert!(!status.contains("INCOMPLETE"), "{status}");

    let limited = shown(&format!("{options} status --limit 1")).await;
    assert!(line(&limited, CUT_OFF).contains("LEASES_EXPIRED"), "{limited}");
    assert!(!limited.contains(SILENT), "{limited}");
    assert_parts(
        &limited,
        &["2 more; watchdogctl verdicts and watchdogctl scaling"],
    );

    services.answers().missing = vec!["lease-probe-1".to_owned()];
    let status = shown(&format!("{options} status")).await;
    assert_parts(&status, &["INCOMPLETE: lease-probe-1 not reached"]);

    *services.answers() = Answers::default();
    let status = shown(&format!("{options} status")).await;
    assert_parts(
        &status,
        &["  0 shoots\n", "Every shoot that is probed is healthy."],
    );
}

#[tokio::test]
async fn status_of_a_large_seed_reads_only_the_shoots_that_need_attention() {
    let mut answers = incident();
    for n in 0..10_000 {
        let shoot = format!("shoot--calm--{n}");
        answers.scalings.push(states::settled(&shoot));
        answers.verdicts.push(states::verdict(&shoot, Outcome::Healthy));
    }
    let (services, _server, options) = start(answers).await;
    let status = shown(&format!("{options} status")).await;
    let counts = "10004 shoots: 1 LEASES_EXPIRED, 1 API_SERVER_UNREACHABLE, 10002 HEALTHY; 1 held down\n";
    assert_parts(&status, &[counts, CUT_OFF, RETURNING, SILENT]);
    // Two verdicts by their outcomes, the shoot that is on its way and the one that is held down, the one that is not
    // protected, and then the verdict and the scaling that two rows lack.
    assert_eq!(services.sent(), 7);
}

#[tokio::test]
async fn a_shoot_that_is_held_down_is_shown_whatever_its_verdict_and_never_called_healthy() {
    let healthy = |shoot| states::verdict(shoot, Outcome::Healthy);
    let held = ShootScaling {
        meltdown_protection_active: true,
        ..states::settled("shoot--a--ignored")
    };
    let (services, _server, options) = start(Answers {
        verdicts: vec![healthy("shoot--a--ignored"), healthy("shoot--a--well")],
        scalings: vec![held],
        ..Answers::default()
    })
    .await;
    let status = shown(&format!("{options} status")).await;
    assert_parts(
        &status,
        &["2 shoots: 2 HEALTHY; 1 held down\n", "\nHeld down: 1\n"],
    );
    assert_parts(line(&status, "shoot--a--ignored"), &["HEALTHY", "  up  "]);
    assert!(!status.contains("Every shoot"), "{status}");
    let checked = shown(&format!("{options} check")).await;
    let end = "The watchdog works, and 1 shoot is held down: shoot--a--ignored; see watchdogctl status.\n";
    assert!(checked.ends_with(end), "{checked}");
    assert!(!checked.contains("Nothing is wrong"), "{checked}");
    let status = json(&format!("{options} status")).await;
    assert_eq!(
        (&status["heldDown"], &status["shoots"][0]["heldDown"]),
        (&1.into(), &true.into())
    );

    // However many there are, and whatever --limit says.
    let many = (0..30).map(|n| ShootScaling {
        direction: Direction::Hold.into(),
        ..states::scaling_down(&format!("shoot--held--{n}"))
    });
    services.answers().scalings = many.collect();
    let status = shown(&format!("{options} status --limit 1")).await;
    assert_eq!(status.matches("\nshoot--held--").count(), 30, "{status}");
}

#[tokio::test]
async fn what_answers_is_shown_when_a_program_does_not() {
    let (services, server, _) = start(incident()).await;
    let (_socket, away) = closed_address();
    let with = |probe: &str, coordinator: &str| {
        format!("--insecure-plaintext --lease-probe {probe} --scaling-coordinator {coordinator}")
    };
    let no_probe = with(&away, &server.address);
    let no_coordinator = with(&server.address, &away);
    for (options, program, answered, parts) in [
        (
            no_probe,
            "lease-probe",
            "scaling",
            ["no verdicts; 1 held down", "\nHeld down: 1\n"],
        ),
        (
            no_coordinator,
            "scaling-coordinator",
            "verdict",
            ["4 verdicts: 1 LEASES_EXPIRED", CUT_OFF],
        ),
    ] {
        let unanswered = format!("NO ANSWER from {program}: ");
        let status = run(&format!("{options} status")).await;
        assert_parts(&status.text, &[&unanswered, "nothing listens there"]);
        assert_parts(&status.text, &parts);
        for command in ["status", "shoot a/cut-off", "report a/cut-off"] {
            fails(&format!("{options} {command}"), 3, &unanswered).await;
        }
        let why = json(&format!("{options} shoot {CUT_OFF}")).await;
        assert_eq!(why["unanswered"][0]["program"], program);
        assert_eq!(why[answered]["shoot"], CUT_OFF);
    }
    // The weeder scales nothing, but nothing is called healthy beside it.
    *services.answers() = Answers::default();
    let no_weeder = format!("{} --weeder {away}", with(&server.address, &server.address));
    let status = run(&format!("{no_weeder} status")).await;
    assert_eq!(status.code, ExitCode::from(3), "{}", status.text);
    assert_parts(
        &status.text,
        &["1 fault of the watchdog", "NO ANSWER from weeder: "],
    );
    assert!(!status.text.contains("Every shoot"), "{}", status.text);
}

#[tokio::test]
async fn incidents_and_reports_are_those_of_the_coordinator() {
    let (_services, _server, options) = start(incident()).await;
    let incidents = json(&format!("{options} incidents")).await;
    let running = &incidents["incidents"][0];
    assert_eq!(
        (&running["shoot"], &running["isRunning"]),
        (&CUT_OFF.into(), &true.into())
    );
    assert_eq!(running["incident"]["scaledDown"], 2);
    assert!(incidents["incidents"].get(1).is_none(), "{incidents}");
    let markdown = shown(&format!("{options} report a/cut-off -o markdown")).await;
    assert_parts(
        &markdown,
        &[
            "# Incidents of shoot--a--cut-off\n",
            "\n```mermaid\ngantt\n",
            "\n```\n",
        ],
    );
    let report = json(&format!("{options} report a/cut-off")).await;
    assert_eq!(report["scaling"]["incident"]["outcome"], "OUTCOME_LEASES_EXPIRED");
    assert!(report["prevented"]["incident"]["text"].is_string());
}

#[tokio::test]
async fn every_command_has_an_answer_for_programs_or_says_that_it_has_none() {
    let (_services, _server, options) = start(incident()).await;
    for (command, key) in [
        ("status", "counts"),
        ("shoot a/cut-off", "scaling"),
        ("plan a/cut-off --direction up", "allowed"),
        ("incidents", "incidents"),
        ("report a/cut-off", "scaling"),
        ("weeders", "weeders"),
        ("services", "services"),
        ("replicas", "programs"),
        ("check", "findings"),
        ("verdicts", "verdicts"),
        ("scaling", "scalings"),
    ] {
        let answer = json(&format!("{options} {command}")).await;
        assert!(answer.get(key).is_some(), "{command}: {answer}");
        let yaml = shown(&format!("{options} -o yaml {command}")).await;
        assert!(yaml.contains(&format!("{key}:")), "{command}: {yaml}");
    }
    for (command, part) in [
        ("ui", "\"url\": \"http://127.0.0.1:"),
        ("status --watch", "\"heldDown\": 1"),
    ] {
        // Also on a terminal.
        let (output, mut recording) = Recording::new(Some((200, 40)));
        let line = format!("{options} {command} -o json");
        let text = until(&line, &mut recording, &output, part).await;
        assert!(text.starts_with('{'), "{command}: {text:?}");
    }
    let (output, mut recording) = Recording::new(None);
    let line = format!("{options} status --watch -o yaml");
    let text = until(&line, &mut recording, &output, "\n---\n").await;
    assert!(text.starts_with("---\n"), "each update is a document: {text:?}");
    for (command, part) in [
        ("status -o markdown", "only report writes Markdown"),
        ("completion bash -o json", "omit -o"),
        ("man -o yaml", "omit -o"),
    ] {
        fails(&format!("{options} {command}"), 2, part).await;
    }
}

#[tokio::test]
async fn status_keeps_the_last_answer_while_a_program_is_away() {
    let (services, _server, options) = start(incident()).await;
    for size in [None, Some((200, 40))] {
        services.change(|answers| answers.refusal = None);
        let (output, mut recording) = Recording::new(size);
        let until_lost = async {
            recording.until("LEASES_EXPIRED").await;
            services.change(|answers| answers.refusal = Some(Status::unavailable("draining")));
            recording.until("NO ANSWER from lease-probe: ").await
        };
        let text = running(&format!("{options} status --watch"), &output, until_lost).await;
        let (before, after) = text.split_once("NO ANSWER from lease-probe: ").unwrap();
        assert_parts(before, &["4 shoots: "]);
        assert_parts(after, &["draining"]);
        let kept = after.lines().find(|line| line.starts_with(CUT_OFF));
        assert!(
            kept.is_some_and(|line| line.contains("LEASES_EXPIRED")),
            "{text:?}"
        );
        if size.is_some() {
            assert!(text.starts_with("\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H"), "{text:?}");
            // A frame is written at once.
            assert_parts(after, &["\x1b[31;1m", "\x1b[K\x1b[J"]);
        } else {
            assert!(!text.contains('\x1b'), "{text:?}");
        }
        let given_back = recording.text().ends_with("\x1b[?7h\x1b[?25h\x1b[?1049l");
        assert_eq!(given_back, size.is_some(), "the terminal is given back");
    }
}

#[tokio::test]
async fn status_is_drawn_for_the_size_that_the_terminal_has_now() {
    let (_services, _server, options) = start(incident()).await;
    let size = Arc::new(Mutex::new(Some((200, 40))));
    let (output, mut recording) = Recording::resized(size.clone());
    let until_narrow = async {
        let wide = recording.until("It has 1 ready replica.").await;
        *size.lock().unwrap() = Some((60, 6));
        (wide.len(), recording.until("…").await)
    };
    let (wide, text) = running(&format!("{options} status --watch"), &output, until_narrow).await;
    let narrow = text.get(wide..).unwrap();
    assert!(!narrow.contains("It has 1 ready replica."), "{narrow:?}");
    assert_eq!(narrow.matches("\r\n").count(), 5, "{narrow:?}");
    assert_parts(
        narrow,
        &["\r\n9 more lines, for which the terminal is too small\x1b[K\x1b[J"],
    );
}

#[tokio::test]
async fn shoot_has_the_plan_of_its_direction_and_plan_says_what_the_verdict_forbids() {
    let (services, _server, options) = start(incident()).await;
    services.answers().missing = vec!["lease-probe-1".to_owned()];
    let why = shown(&format!("{options} shoot a/cut-off")).await;
    let now = "WHAT WOULD HAPPEN NOW\n  would be scaled down: The verdict is valid.";
    assert_parts(&why, &["INCOMPLETE: lease-probe-1 not reached", now]);
    let why = shown(&format!("{options} shoot {SILENT}")).await;
    assert_parts(&why, &["API_SERVER_UNREACHABLE", "Nothing: the shoot is held."]);
    let plan = shown(&format!("{options} plan a/cut-off --direction up")).await;
    let head =
        "shoot--a--cut-off would NOT be scaled up, because its direction is down: The nodes are cut off.\n";
    assert!(plan.starts_with(head), "{plan}");
}

#[tokio::test]
async fn weeders_and_services_are_filtered_by_the_server() {
    let (services, _server, options) = start(incident()).await;
    services.answers().missing = vec!["weeder-1".to_owned()];
    let weeders = shown(&format!("{options} weeders")).await;
    assert_parts(
        &weeders,
        &["INCOMPLETE: weeder-1 not reached", CUT_OFF, RETURNING, SILENT],
    );
    let weeders = shown(&format!("{options} weeders --shoot a/silent")).await;
    assert!(
        weeders.contains(SILENT) && !weeders.contains(CUT_OFF),
        "{weeders}"
    );
    let services = shown(&format!("{options} services")).await;
    assert_eq!(services.matches("  READY").count(), 3, "{services}");
    let services = shown(&format!("{options} services --service etcd-main-client")).await;
    assert_eq!(services.matches("  READY").count(), 1, "{services}");
    assert_parts(&services, &["INCOMPLETE: weeder-1 not reached", CUT_OFF]);
}

#[tokio::test]
async fn replicas_shows_the_share_of_each_and_who_is_missing() {
    let (services, _server, options) = start(incident()).await;
    services.answers().missing = vec!["other-1".to_owned()];
    services.answers().replicas = [("lease-probe-0", 3), ("lease-probe-2", 1), ("lease-probe-3", 4)]
        .map(|(name, shoots)| Replica {
            name: name.to_owned(),
            state: ReplicaState::Connected.into(),
            shoots,
        })
        .to_vec();
    let replicas = shown(&format!("{options} replicas")).await;
    for (replica, parts) in [
        ("lease-probe-0", ["connected", "3 shoots    75 %"]),
        ("lease-probe-2", ["connected", "1 shoots    25 %"]),
        ("lease-probe-3", ["connected", "4 shoots    100 %"]),
        ("scaling-coordinator-0", ["connected", "4 shoots    100 %"]),
        ("weeder-0", ["connected", "3 services  100 %"]),
        ("other-1", ["missing", "unknown"]),
    ] {
        let line = replicas.lines().find(|line| line.contains(replica)).unwrap();
        assert_parts(line, &parts);
    }
    // Without an address, a program is not asked.
    let (only_probe, _) = options.split_once(" --scaling").unwrap();
    let replicas = shown(&format!("{only_probe} replicas")).await;
    assert!(!replicas.contains("weeder"), "{replicas}");
}

#[tokio::test]
async fn verdicts_and_scaling_are_tables_or_messages_of_the_api() {
    let (services, _server, options) = start(incident()).await;
    services.answers().missing = vec!["replica-1".to_owned()];
    let json = async |command: &str| json(&format!("{options} {command}")).await;
    let all = json("verdicts").await;
    assert_eq!(all["verdicts"].as_array().unwrap().len(), 4, "all pages");
    assert_eq!(all["totalSize"], 4);
    assert!(all.get("nextPageToken").is_none());
    assert_eq!(all["completeness"]["missingReplicas"][0], "replica-1");
    let expired = json("verdicts --outcome leases-expired").await;
    assert_eq!(expired["totalSize"], 1);
    assert_eq!(expired["verdicts"][0]["shoot"], CUT_OFF);
    let named = json("verdicts a/silent a/cut-off").await;
    assert_eq!(
        named["verdicts"][0]["shoot"], CUT_OFF,
        "in the order of their names"
    );
    assert_eq!(named["verdicts"][1]["shoot"], SILENT);
    assert_eq!(
        named["completeness"]["missingReplicas"],
        serde_json::json!(["replica-1"])
    );

    assert_eq!(json("scaling").await["scalings"].as_array().unwrap().len(), 4);
    let held = json("scaling --direction hold").await;
    assert_eq!(held["scalings"][0]["shoot"], SILENT);
    let named = json("scaling a/silent a/cut-off").await;
    assert_eq!(named["totalSize"], 2);
    assert_eq!(named["scalings"][0]["meltdownProtectionActive"], true);

    for command in ["verdicts", "scaling"] {
        let table = shown(&format!("{options} {command}")).await;
        let first = "INCOMPLETE: replica-1 not reached";
        assert!(table.starts_with(first), "{command}: {table}");
    }
}

#[tokio::test]
async fn check_finds_what_is_wrong_with_each_replica() {
    let (services, _server, options) = start(incident()).await;
    let scalings = std::mem::take(&mut services.answers().scalings);
    let checked = shown(&format!("{options} check")).await;
    assert!(checked.ends_with("Nothing is wrong.\n"), "{checked}");
    services.answers().scalings = scalings;
    assert_parts(
        &checked,
        &[
            "ready, with all permissions",
            "plaintext: everything that reaches",
        ],
    );

    {
        let mut answers = services.answers();
        answers.is_not_serving = true;
        answers.missing = vec!["lease-probe-1".to_owned()];
        let blocker = "may not list leases".to_owned();
        answers.metadata.push(("watchdog-blocker", blocker));
        let date = "Sun, 06 Nov 1994 08:49:37 GMT".to_owned();
        answers.metadata.push(("date", date));
    }
    // Two replicas of lease-probe with this clock, and one that is away.
    let (_socket, away) = closed_address();
    let checked = run(&format!("{options} --lease-probe {away} check")).await;
    assert_eq!(checked.code, ExitCode::from(1), "{}", checked.text);
    assert_parts(
        &checked.text,
        &[
            "not ready: may not list leases",
            "lease-probe-1 not reached by the other replicas",
            &format!("lease-probe {away}"),
            "nothing listens there",
            "within 3 s of the other replicas",
        ],
    );
    services.answers().refusal = Some(Status::permission_denied("not an allowed client"));
    fails(&format!("{options} check"), 1, "not an allowed client").await;
    fails(
        "--insecure-plaintext --weeder no-such-host.invalid:1 check",
        1,
        "correct the host of --weeder",
    )
    .await;
}

/// People share a certificate, and a replica takes few connections of one. In a rollout, one that drains still listens.
#[tokio::test]
async fn a_replica_that_refuses_more_or_drains_is_passed_over() {
    let full = Status::resource_exhausted("you already have 8 connections to this replica");
    for (refusal, shown_for_all) in [
        (
            full,
            "8 connections to this replica\n  the replica serves too many",
        ),
        (
            Status::unavailable("this replica is draining"),
            "this replica is draining",
        ),
    ] {
        let mut replicas = [start(incident()).await, start(incident()).await];
        // In the order in which they are asked.
        replicas.sort_by_key(|(_, server, _)| server.address.parse::<SocketAddr>().unwrap());
        let [(first, one, _), (second, other, _)] = replicas;
        let line = format!(
            "--insecure-plaintext --lease-probe {},{} verdicts",
            one.address, other.address
        );
        first.answers().refusal = Some(refusal.clone());
        assert_parts(&shown(&line).await, &[CUT_OFF]);
        second.answers().refusal = Some(refusal);
        fails(&line, 3, shown_for_all).await;
    }
}

#[tokio::test]
async fn an_error_says_what_to_do_and_has_its_exit_code() {
    let (services, server, options) = start(incident()).await;
    let (_socket, away) = closed_address();
    let away = self::options(&away);
    let only_probe = format!("--insecure-plaintext --lease-probe {}", server.address);
    for (line, code, part) in [
        (
            format!("{options} shoot a/unknown"),
            1,
            "watchdogctl verdicts lists the shoots",
        ),
        (
            format!("{options} verdicts a/unknown a/silent"),
            1,
            "watchdogctl verdicts lists the shoots",
        ),
        (format!("{options} plan sandbox/one"), 2, "--direction"),
        (
            format!("{options} verdicts --outcome nonsense"),
            2,
            "leases-expired",
        ),
        (
            format!("{options} shoot Not_A_Name"),
            2,
            "shoot--core--crazy, or core/crazy",
        ),
        (
            format!("{only_probe} status"),
            2,
            "add --scaling-coordinator HOST:PORT",
        ),
        (
            format!("{only_probe} shoot a/silent"),
            2,
            "add --scaling-coordinator HOST:PORT",
        ),
        (
            format!("{only_probe} --tls-server-name not_a..name verdicts"),
            2,
            "correct --tls-server-name",
        ),
        (format!("{away} verdicts"), 3, "nothing listens there"),
        (format!("{away} status"), 3, "nothing listens there"),
        (
            format!("--lease-probe {} verdicts", server.address),
            2,
            "add --tls-secret NAME",
        ),
    ] {
        fails(&line, code, part).await;
    }
    services.answers().refusal = Some(Status::permission_denied("you"));
    for command in [
        "status",
        "shoot a/silent",
        "plan a/silent --direction up",
        "verdicts",
        "weeders",
        "replicas",
    ] {
        fails(&format!("{options} {command}"), 3, "--tls-allowed-client").await;
    }
}

/// A terminal clears its screen, sets its title, or reverses the text.
const CONTROLS: &str = "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}31m\u{202e}\u{2066}\r\n";

/// The message with control sequences in each text that no command looks for.
fn hostile<M: Message + Name + Default>(message: &M) -> M {
    let pool = DescriptorPool::decode(watchdog_proto::FILE_DESCRIPTOR_SET).unwrap();
    let descriptor = pool.get_message_by_name(&M::full_name()).unwrap();
    let mut dynamic = DynamicMessage::new(descriptor);
    dynamic.transcode_from(message).unwrap();
    add_controls(&mut dynamic);
    dynamic.transcode_to().unwrap()
}

fn add_controls(message: &mut DynamicMessage) {
    for (field, value) in message.fields_mut() {
        if !["shoot", "namespace", "service"].contains(&field.name()) {
            add_controls_to(value);
        }
    }
}

fn add_controls_to(value: &mut Value) {
    match value {
        Value::String(text) => text.push_str(CONTROLS),
        Value::Message(message) => add_controls(message),
        Value::List(list) => list.iter_mut().for_each(add_controls_to),
        Value::Map(map) => map.values_mut().for_each(add_controls_to),
        _ => {}
    }
}

#[tokio::test]
async fn no_command_shows_what_a_terminal_acts_upon() {
    let honest = incident();
    let (services, _server, options) = start(Answers {
        verdicts: honest.verdicts.iter().map(hostile).collect(),
        scalings: honest.scalings.iter().map(hostile).collect(),
        plan: hostile(&honest.plan),
        weeders: honest.weeders.iter().map(hostile).collect(),
        services: honest.services.iter().map(hostile).collect(),
        missing: vec![format!("replica-1{CONTROLS}")],
        ..honest
    })
    .await;
    let commands = [
        "status",
        "shoot a/cut-off",
        "verdicts",
        "verdicts -o wide",
        "verdicts -o json",
        "verdicts -o yaml",
        "scaling",
        "scaling -o wide",
        "scaling -o json",
        "scaling -o yaml",
        "incidents",
        "incidents -o json",
        "report a/cut-off",
        "report a/cut-off -o markdown",
        "report a/cut-off -o json",
        "status -o json",
        "shoot a/cut-off -o json",
        "check -o json",
        "plan a/cut-off --direction up",
        "weeders",
        "services",
        "replicas",
        "check",
    ];
    for refusal in [None, Some(Status::unavailable(CONTROLS))] {
        services.answers().refusal = refusal;
        for command in commands {
            let text = run(&format!("{options} {command}")).await.text;
            let acted_upon = text.chars().find(|c| *c != '\n' && !is_printable(*c));
            assert!(!text.is_empty() && acted_upon.is_none(), "{command}: {text:?}");
        }
    }
}
