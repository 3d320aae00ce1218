//! The page as a browser asks for it: in process, against programs whose answers are set.

mod browser;

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tonic::Status;
use watchdog_proto::probe::v1::Outcome;
use watchdog_test_support::wait;

use super::*;
use crate::program::Program;
use crate::render::testing as states;
use crate::seed::cell::CellState;
use crate::seed::model::ClockReading;
use crate::testing::pod_api::{PodApi, Seed};
use crate::testing::stub_services::{Answers, StubServer, StubServices};
use crate::testing::{BOUND, Recording, fails, followed, until};

const SHOOT: &str = "shoot--a--one";

/// A page that is served.
struct Served {
    url: String,
    services: StubServices,
    /// Of the server: its connections end with it, as with a process.
    runtime: Option<Runtime>,
    programs: StubServer,
}

impl Served {
    /// Ends the server.
    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Healthy shoots.
fn healthy(shoots: &[&str]) -> Answers {
    Answers {
        verdicts: shoots
            .iter()
            .map(|shoot| states::verdict(shoot, Outcome::Healthy))
            .collect(),
        scalings: shoots.iter().map(|shoot| states::settled(shoot)).collect(),
        ..Answers::default()
    }
}

async fn serve(answers: Answers) -> Served {
    serve_beside(answers, Vec::new()).await
}

/// A page about a seed, and others after it.
async fn serve_beside(answers: Answers, others: Vec<FollowedSeed>) -> Served {
    let services = StubServices::new(answers);
    let programs = services.serve().await;
    let options = crate::testing::options(&programs.address);
    let mut seeds = followed(&format!("{options} ui")).await;
    seeds.extend(others);
    let runtime = Runtime::new().unwrap();
    let bound = runtime.spawn(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = server::PageServer::new(seeds, &listener).unwrap();
        (server.url.clone(), tokio::spawn(server.run(listener)))
    });
    let (url, _) = bound.await.unwrap();
    Served {
        url,
        services,
        runtime: Some(runtime),
        programs,
    }
}

/// A seed that cannot be connected to.
async fn away() -> Vec<FollowedSeed> {
    followed("--kubeconfig /no/such/kubeconfig --contexts away ui").await
}

impl Served {
    fn address(&self) -> SocketAddr {
        let host = self.url.strip_prefix("http://").unwrap();
        host.split('/').next().unwrap().parse().unwrap()
    }

    /// Opens a path below the address of the page.
    async fn get(&self, path: &str) -> Answer {
        let host = self.address().to_string();
        self.get_as(path, &[("host", &host)]).await
    }

    async fn get_as(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let path = format!("{}{path}", self.url);
        let path = path.strip_prefix(&format!("http://{}", self.address())).unwrap();
        get(self.address(), path, headers).await
    }
}

/// An answer whose body is still read.
struct Answer {
    code: u16,
    head: String,
    stream: TcpStream,
    read: Vec<u8>,
}

/// HTTP 1.0, so the body comes as it is.
async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!("GET {path} HTTP/1.0\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Answer {
        code: 0,
        head: String::new(),
        stream,
        read: Vec::new(),
    };
    answer.head = answer.until("\r\n\r\n").await.to_lowercase();
    answer.code = answer.head.split(' ').nth(1).unwrap().parse().unwrap();
    answer
}

impl Answer {
    /// The text up to this end.
    async fn until(&mut self, end: &str) -> String {
        loop {
            let found = self
                .read
                .windows(end.len())
                .position(|part| part == end.as_bytes());
            if let Some(found) = found {
                let rest = self.read.split_off(found + end.len());
                return String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
            }
            let read = tokio::time::timeout(BOUND, self.stream.read_buf(&mut self.read)).await;
            assert_ne!(read.unwrap().unwrap(), 0, "it ends before {end:?}");
        }
    }

    /// The next message of a stream of events.
    async fn message(&mut self) -> Value {
        let event = self.until("\n\n").await;
        serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()
    }

    /// The first message for which this is true.
    async fn message_with(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.message().await;
            if is_it(&message) {
                return message;
            }
        }
    }
}

/// The state of a shoot in a message; none if it is not in it.
fn state<'a>(message: &'a Value, shoot: &str) -> Option<&'a str> {
    let mut cells = message["cells"].as_array()?.iter();
    cells.find(|cell| cell["name"] == shoot)?["state"].as_str()
}

#[test]
fn the_page_stays_small() {
    let lines = server::FILES.map(|(.., content)| content.lines().count());
    assert!(lines.iter().sum::<usize>() < 700, "{lines:?}");
}

#[tokio::test]
async fn every_answer_forbids_what_is_not_of_the_page() {
    let page = serve(Answers::default()).await;
    for (path, kind) in [
        ("", "text/html"),
        ("page.js", "text/javascript"),
        ("page.css", "text/css"),
    ] {
        let answer = page.get(path).await;
        assert_eq!(answer.code, 200, "{path}");
        assert!(
            answer
                .head
                .contains(&format!("content-type: {kind}; charset=utf-8")),
            "{}",
            answer.head
        );
    }
    for path in ["", "seeds/0", "nothing"] {
        let head = page.get(path).await.head;
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(header), "{path}: {header} is not in {head}");
        }
        assert!(!head.contains("access-control-"), "{head}");
    }
}

#[tokio::test]
async fn only_the_address_with_its_secret_opens_the_page() {
    let page = serve(healthy(&[SHOOT])).await;
    let own = page.address().to_string();
    let localhost = format!("localhost:{}", page.address().port());
    let origin = format!("http://{own}");
    for (headers, code) in [
        (vec![("host", own.as_str())], 200),
        (vec![("host", &localhost)], 200),
        (vec![("host", &own), ("origin", &origin)], 200),
        // A name that resolves to loopback, which a page of that name could read.
        (vec![("host", "evil.example.org")], 403),
        (vec![("host", "127.0.0.1")], 403),
        (vec![], 403),
        (vec![("host", &own), ("origin", "http://evil.example.org")], 403),
        (vec![("host", &own), ("origin", "null")], 403),
        (vec![("host", &localhost), ("origin", &origin)], 403),
    ] {
        for path in ["", "seeds/0"] {
            assert_eq!(
                page.get_as(path, &headers).await.code,
                code,
                "{path}: {headers:?}"
            );
        }
    }
    for path in ["/", "/seeds/0", "/page.js", &format!("/{:032x}/", 0)] {
        let answer = get(page.address(), path, &[("host", &own)]).await;
        assert_eq!(answer.code, 404, "{path}");
    }
    let other = serve(Answers::default()).await;
    let secret = |url: &str| url.rsplit('/').nth(1).unwrap().to_owned();
    assert_eq!(secret(&page.url).len(), 32);
    assert_ne!(secret(&page.url), secret(&other.url));
}

#[tokio::test]
async fn a_page_gets_the_seed_and_then_what_changes_until_a_program_is_lost() {
    let page = serve(healthy(&[SHOOT, "shoot--a--two"])).await;
    let mut stream = page.get("seeds/0").await;
    assert!(
        stream.head.contains("content-type: text/event-stream"),
        "{}",
        stream.head
    );
    let is = |wanted: &'static str| {
        move |message: &Value| {
            let programs = message["programs"].as_array().into_iter();
            programs.flatten().all(|program| program["state"] == wanted) && message.get("programs").is_some()
        }
    };
    let first = stream.message().await;
    assert_eq!(first["title"], page.programs.address.as_str());
    if !is("connected")(&first) {
        stream.message_with(is("connected")).await;
    }
    page.services.change(|answers| {
        answers.verdicts[0] = states::verdict(SHOOT, Outcome::LeasesExpired);
        answers.scalings[0] = states::scaling_down(SHOOT);
    });
    let changed = stream
        .message_with(|message| message["cells"][0]["note"].is_string())
        .await;
    assert_eq!(state(&changed, SHOOT), Some("losing"));
    // A sign of life.
    stream
        .message_with(|message| message.get("cells").is_none())
        .await;
    // A page that is opened now gets all.
    let mut late = page.get("seeds/0").await;
    let late = late.message().await;
    assert_eq!(
        (state(&late, SHOOT), state(&late, "shoot--a--two")),
        (Some("losing"), Some("healthy"))
    );
    page.services
        .change(|answers| answers.refusal = Some(Status::unavailable("draining")));
    let lost = stream.message_with(is("lost")).await;
    for program in lost["programs"].as_array().unwrap() {
        let text = program["text"].as_str().unwrap();
        assert!(
            text.contains("draining") && program["isFine"] == false,
            "{program}"
        );
    }
    page.services.change(|answers| answers.refusal = None);
    stream.message_with(is("connected")).await;
}

#[tokio::test]
async fn a_replica_that_refuses_more_streams_or_ends_one_is_passed_over() {
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let services = StubServices::new(healthy(&[SHOOT]));
        let server = services.serve().await;
        replicas.push((services, server));
    }
    // In the order in which they are asked.
    replicas.sort_by_key(|(_, server)| server.address.parse::<SocketAddr>().unwrap());
    let addresses = format!("{},{}", replicas[0].1.address, replicas[1].1.address);
    replicas[1].0.answers().verdicts[0].shoot = "shoot--a--other".to_owned();
    let followed = followed(&format!("--insecure-plaintext --lease-probe {addresses} ui")).await;
    let until = async |shoot: &str| {
        while !followed[0].state.model().shoots.contains_key(shoot) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(BOUND, until(SHOOT)).await.unwrap();
    let full = Status::resource_exhausted("you already have 32 streams to this replica");
    replicas[0].0.change(|answers| answers.refusal = Some(full));
    tokio::time::timeout(BOUND, until("shoot--a--other"))
        .await
        .unwrap();

    // After the last one, all are tried again. A lost stream is a reason, too.
    replicas[0].0.change(|answers| {
        answers.refusal = None;
        answers.verdicts[0].shoot = "shoot--a--third".to_owned();
    });
    let ends = Status::unavailable("the server ends");
    replicas[1].0.change(|answers| answers.refusal = Some(ends));
    tokio::time::timeout(BOUND, until("shoot--a--third"))
        .await
        .unwrap();
}

/// Nothing would scale its dependants.
#[tokio::test]
async fn no_shoot_is_healthy_beside_a_coordinator_that_is_scaled_to_zero() {
    let services = StubServices::new(healthy(&[SHOOT]));
    let programs = services.serve().await;
    let mut api = PodApi::release(&[(Program::LeaseProbe, &programs.address)]);
    api.deployments[1]["spec"]["replicas"] = 0.into();
    let seed = Seed::start(api).await;
    let followed = followed(&format!("--insecure-plaintext {} ui", seed.options())).await;
    let cells = || {
        let model = followed[0].state.model();
        let coordinator = model.programs.get(&Program::ScalingCoordinator);
        let is_lost = coordinator.is_some_and(|followed| followed.lost.is_some());
        (is_lost && !model.shoots.is_empty()).then(|| model.cells(&ClockReading::now()))
    };
    let shown = wait::until("the coordinator is lost", BOUND, async || Ok(cells()))
        .await
        .unwrap();
    assert_eq!(
        (shown[0].name.as_str(), shown[0].state),
        (SHOOT, CellState::Stale)
    );
}

#[tokio::test]
async fn a_page_of_several_seeds_shows_each_of_them() {
    let page = serve_beside(healthy(&[SHOOT]), away().await).await;
    let mut first = page.get("seeds/0").await;
    first
        .message_with(|message| state(message, SHOOT) == Some("healthy"))
        .await;
    let mut second = page.get("seeds/1").await;
    let lost = second
        .message_with(|message| message["programs"][0]["state"] == "lost")
        .await;
    assert_eq!(
        (&lost["title"], &lost["seeds"][1][0]),
        (&"away".into(), &"away".into())
    );
    let why = lost["programs"][0]["text"].as_str().unwrap();
    assert!(why.contains(": cannot reach the seed: "), "{why}");
    // A loss on one seed shows on the page of the other.
    page.services
        .change(|answers| answers.verdicts[0] = states::verdict(SHOOT, Outcome::LeasesExpired));
    second.message_with(|message| message["seeds"][0][1] == 1).await;
    let mut shoot = page.get(&format!("seeds/1/{SHOOT}")).await;
    assert_eq!(shoot.message().await["shoot"]["state"], Value::Null);
    for (path, code) in [("seeds", 404), ("seeds/2", 404), ("seeds/x", 400)] {
        assert_eq!(page.get(path).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn the_shoot_that_a_page_shows_is_in_its_stream() {
    let page = serve(healthy(&[SHOOT])).await;
    let mut stream = page.get(&format!("seeds/0/{SHOOT}")).await;
    assert_eq!(stream.message().await["title"], page.programs.address.as_str());
    stream
        .message_with(|message| message["shoot"]["state"] == "healthy")
        .await;
    let mut unknown = page.get("seeds/0/a%2F..%2Fnone").await;
    let unknown = &unknown.message().await["shoot"];
    assert_eq!(
        (&unknown["name"], &unknown["state"]),
        (&"a/../none".into(), &Value::Null)
    );
}

/// Others of this machine reach the port, too.
#[tokio::test]
async fn connections_that_say_nothing_keep_no_page_out_and_are_closed() {
    let page = serve(healthy(&[SHOOT])).await;
    let mut stream = page.get("seeds/0").await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(page.address()).await.unwrap());
    }
    assert_eq!(page.get("").await.code, 200);
    // One that asks without the secret ends with its answer.
    let host = page.address().to_string();
    let mut refused = TcpStream::connect(page.address()).await.unwrap();
    let request = format!("GET /seeds/0 HTTP/1.1\r\nhost: {host}\r\n\r\n");
    refused.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let ended = tokio::time::timeout(BOUND, refused.read_to_string(&mut answer)).await;
    ended.unwrap().unwrap();
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    // Also the last of those that are silent, for which no other one makes room.
    for mut connection in silent {
        let ended = tokio::time::timeout(BOUND, connection.read_to_end(&mut Vec::new())).await;
        // Reset is an end, too.
        assert!(ended.is_ok(), "a connection without the secret is still open");
    }
    // A stream that was open before goes on.
    stream
        .message_with(|message| message.get("cells").is_none())
        .await;
}

#[tokio::test]
async fn streams_are_limited_and_given_back() {
    let page = serve(healthy(&[SHOOT])).await;
    let mut open = Vec::new();
    for _ in 0..server::MAX_STREAMS {
        let stream = page.get("seeds/0").await;
        assert_eq!(stream.code, 200);
        open.push(stream);
    }
    for path in ["seeds/0", &format!("seeds/0/{SHOOT}")] {
        let mut refused = page.get(path).await;
        assert_eq!(refused.code, 503);
        assert!(refused.until("\n").await.contains("Close other tabs"));
    }
    assert_eq!(page.get("").await.code, 200, "a file is no stream");
    open.pop();
    let given_back = async {
        while page.get("seeds/0").await.code != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(BOUND, given_back).await.unwrap();
}

#[tokio::test]
async fn the_command_prints_its_address_and_says_what_is_wrong() {
    let services = StubServices::new(healthy(&[SHOOT]));
    let programs = services.serve().await;
    let address = &programs.address;
    let line = format!("--insecure-plaintext --lease-probe {address} ui");
    let (output, mut recording) = Recording::new(None);
    let printed = until(&line, &mut recording, &output, "Ctrl-C").await;
    assert!(printed.starts_with("http://127.0.0.1:"), "{printed}");

    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    fails(
        &format!("--insecure-plaintext --lease-probe {address} ui --port {port}"),
        2,
        "choose another --port",
    )
    .await;
    fails(&format!("--lease-probe {address} ui"), 2, "--insecure-plaintext").await;
}
