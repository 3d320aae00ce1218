//! The demo itself, and the commands that it prints for those who go on by hand.

use std::process::Output;
use std::time::Duration;

use watchdog_test_support::process::Command;
use watchdog_test_support::scratch::Scratch;
use watchdog_test_support::{binaries, tools};

async fn shell(command: &str) -> Output {
    let run = tokio::process::Command::new("sh")
        .args(["-c", command])
        .kill_on_drop(true)
        .output();
    let run = tokio::time::timeout(Duration::from_secs(60), run);
    run.await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_is_all_right_and_the_commands_that_it_prints_work() {
    let scratch = Scratch::new("demo-test").unwrap();
    let demo = Command::new("demo", binaries::path("demo").unwrap())
        .env("KEEP", "1")
        .spawn(&scratch)
        .unwrap();
    demo.wait_for_text("curl http://", Duration::from_secs(90))
        .await
        .unwrap();
    let output = std::fs::read_to_string(demo.log_path()).unwrap();
    assert!(
        output.contains("--- Summary") && !output.contains("FAIL"),
        "{output}"
    );
    for (line, part) in [
        (
            "watch it on the page of watchdogctl ui: ",
            "<title>Dependency Watchdog</title>",
        ),
        ("Cut the network of a shoot:  ", "<title>Sandbox</title>"),
        (
            "Watch what happens:          ",
            "<title>Dependency Watchdog</title>",
        ),
    ] {
        let (_, url) = output
            .split_once(line)
            .unwrap_or_else(|| panic!("{line:?} is not in {output}"));
        let url = url.split_whitespace().next().unwrap();
        let page = shell(&format!("curl --silent --fail '{url}'")).await;
        let page = String::from_utf8_lossy(&page.stdout);
        assert!(page.contains(part), "{url}: {page}");
    }
    let commands: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("grpcurl "))
        .collect();
    assert_eq!(commands.len(), 5, "{output}");
    let path = tools::path(tools::GRPCURL).unwrap();
    let folder = path.parent().unwrap().display().to_string();
    for command in commands {
        // A person would press Ctrl-C; a stream is cut after its first messages here.
        let command = command.replacen("grpcurl ", "grpcurl -max-time 3 ", 1);
        let run = shell(&format!("export PATH='{folder}':\"$PATH\"; {command}")).await;
        let answer = String::from_utf8_lossy(&run.stdout);
        // A plan does not repeat the name of its shoot.
        let expected = match command.contains("PlanScaling") {
            true => "kube-controller-manager",
            false => "shoot--sandbox--alpha",
        };
        assert!(answer.contains(expected), "{command}: {answer} {run:?}");
    }
    let exports: String = output
        .lines()
        .filter(|line| line.starts_with("export WATCHDOG_"))
        .map(|line| format!("{line}; "))
        .collect();
    let watchdogctl = binaries::path(binaries::WATCHDOGCTL)
        .unwrap()
        .display()
        .to_string();
    let commands: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with(&watchdogctl))
        .collect();
    assert_eq!(commands.len(), 7, "{output}");
    for command in commands {
        // The first is ended as a person would end it.
        let command = command.replace("status --watch", "status");
        let run = shell(&format!("{exports}{command}")).await;
        assert!(run.status.success(), "{command}: {run:?}");
    }
    demo.sigint().unwrap();
    let status = demo.wait_exit(Duration::from_secs(20)).await.unwrap();
    assert_eq!(status.code(), Some(0), "interrupting it is the way to end it");
}
