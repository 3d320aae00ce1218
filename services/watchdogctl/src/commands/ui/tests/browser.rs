//! The page in Debian's headless Chromium. Skipped where that is not installed.

use watchdog_proto::probe::v1::ZoneEvidence;
use watchdog_proto::scaling::v1::Incident;
use watchdog_test_support::browser::{Browser, Tab};
use watchdog_test_support::scratch::Scratch;

use super::*;

/// Shoots of a large seed.
const MANY: usize = 5_000;

/// A verdict that stays valid for as long as a test runs.
fn lasting(answers: &mut Answers) {
    for verdict in &mut answers.verdicts {
        verdict.valid_for = states::seconds(300);
    }
}

/// An incident that runs.
fn incident(shoot: &str) -> ShootScaling {
    ShootScaling {
        mode: Mode::Protect.into(),
        incident: Some(Incident {
            outcome: Outcome::LeasesExpired.into(),
            start_time: states::ago(60),
            last_renewal_to_verdict: states::seconds(34),
            scaled_down: 1,
            reason: "A sentence.".to_owned(),
            scale_times: vec![watchdog_proto::scaling::v1::ScaleTimes {
                resource: states::resource("kube-controller-manager", 0, Default::default()).resource,
                direction: Direction::Down.into(),
                scaled_after: Some(prost_types::Duration {
                    seconds: 0,
                    nanos: 250_000_000,
                }),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..states::scaling_down(shoot)
    }
}

/// Nothing was refused, nothing failed, and everything came from the page's own address.
fn assert_at_home(page: &Served, tab: &Tab) {
    assert_eq!(tab.complaints(), [""; 0]);
    assert!(tab.requests().len() > 3, "{:?}", tab.requests());
    let is_own = |url: &String| url.starts_with(&page.url) || url == "about:blank";
    assert!(tab.requests().iter().all(is_own), "{:?}", tab.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_markup_are_text_everywhere() {
    let scratch = Scratch::new("page-markup").unwrap();
    let Some(browser) = Browser::start(&scratch).await.unwrap() else {
        return;
    };
    let markup =
        |text: &str| format!("<img src=x onerror=\"document.title='gone'\"><b class=evil>{text}</b>");
    let name = markup("name");
    let mut answers = Answers {
        verdicts: vec![states::verdict(&name, Outcome::LeasesExpired)],
        scalings: vec![incident(&name)],
        missing: vec![markup("replica")],
        ..Answers::default()
    };
    let verdict = &mut answers.verdicts[0];
    (verdict.message, verdict.observer) = (markup("message"), markup("observer"));
    verdict.evidence.as_mut().unwrap().zones = vec![ZoneEvidence {
        zone: markup("zone"),
        candidates: 6,
        expired: 6,
    }];
    let scaling = &mut answers.scalings[0];
    (scaling.reason, scaling.replica) = (markup("reason"), markup("owner"));
    for resource in &mut scaling.resources {
        resource.message = markup("step");
        resource.resource.as_mut().unwrap().name = markup("dependant");
    }
    let running = scaling.incident.as_mut().unwrap();
    (running.reason, running.last_error) = (markup("started"), markup("failed"));
    running.scale_times[0].resource.as_mut().unwrap().name = markup("lane");
    lasting(&mut answers);
    let page = serve(answers).await;
    let mut tab = browser.open(&page.url, 1280).await.unwrap();
    tab.until("document.querySelector('.row')").await.unwrap();
    tab.evaluate("document.querySelector('.row').click()")
        .await
        .unwrap();
    tab.until("document.querySelector('#part-incidents table')")
        .await
        .unwrap();
    let shown = tab.evaluate("document.body.textContent").await.unwrap();
    let shown = shown.as_str().unwrap();
    for text in [
        "name",
        "replica",
        "message",
        "observer",
        "zone",
        "reason",
        "owner",
        "step",
        "dependant",
        "started",
        "failed",
        "lane",
    ] {
        assert!(shown.contains(&markup(text)), "{text} is not in {shown}");
    }
    let made = tab
        .evaluate("document.querySelectorAll('img, .evil').length")
        .await;
    assert_eq!(made.unwrap(), 0);
    assert_at_home(&page, &tab);
    browser.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_shoots_are_one_cell_each_and_the_keyboard_reaches_them() {
    let scratch = Scratch::new("page-many").unwrap();
    let Some(browser) = Browser::start(&scratch).await.unwrap() else {
        return;
    };
    let names: Vec<String> = (0..MANY)
        .map(|n| format!("shoot--project--cluster-{n:04}"))
        .collect();
    let mut answers = healthy(&names.iter().map(String::as_str).collect::<Vec<_>>());
    answers.verdicts[4_000] = states::verdict(&names[4_000], Outcome::LeasesExpired);
    answers.scalings[4_000] = incident(&names[4_000]);
    lasting(&mut answers);
    let page = serve(answers).await;
    let mut tab = browser.open(&page.url, 1280).await.unwrap();
    tab.until("document.querySelectorAll('.cell.healthy').length === 4999 && document.querySelector('.row')")
        .await
        .unwrap();
    let summary = tab
        .evaluate("document.getElementById('summary').textContent")
        .await
        .unwrap();
    assert_eq!(summary, "5,000 shoots: 1 cut off");

    // What is urgent comes first, in the list and in the grid.
    let first = "document.querySelector('#grid > :first-child')";
    let label = tab
        .evaluate(&format!("{first}.getAttribute('aria-label')"))
        .await
        .unwrap();
    assert_eq!(label, format!("{}: cut off", names[4_000]));
    assert_eq!(tab.evaluate(&format!("{first}.textContent")).await.unwrap(), "↓");
    tab.evaluate(&format!("{first}.focus()")).await.unwrap();
    tab.press(&["ArrowRight", "ArrowRight", "ArrowLeft"])
        .await
        .unwrap();
    let focused = "document.activeElement.dataset.name";
    assert_eq!(tab.evaluate(focused).await.unwrap(), names[0]);
    tab.press(&["ArrowDown", "ArrowUp", "End", "Home", "Enter"])
        .await
        .unwrap();
    tab.until("document.querySelector('#part-incidents table')")
        .await
        .unwrap();
    let opened = tab
        .evaluate("document.getElementById('shoot-name').textContent")
        .await
        .unwrap();
    assert_eq!(opened, names[4_000]);
    assert_eq!(tab.evaluate("document.activeElement.id").await.unwrap(), "shoot");
    tab.press(&["Escape"]).await.unwrap();
    assert_eq!(
        tab.evaluate("document.getElementById('shoot').hidden")
            .await
            .unwrap(),
        true
    );
    assert_eq!(
        tab.evaluate(focused).await.unwrap(),
        names[4_000],
        "the focus comes back"
    );

    // To find one.
    tab.press(&["/"]).await.unwrap();
    tab.evaluate("$('find').value = 'cluster-1234'; filter()")
        .await
        .unwrap();
    let shown = tab
        .evaluate("[...$('grid').children].filter((cell) => !cell.hidden).map((cell) => cell.dataset.name)");
    assert_eq!(shown.await.unwrap(), serde_json::json!([names[1_234]]));
    assert_eq!(tab.evaluate("document.activeElement.id").await.unwrap(), "find");
    assert_at_home(&page, &tab);
    browser.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stale_is_never_shown_as_healthy_and_a_narrow_screen_has_room() {
    let scratch = Scratch::new("page-stale").unwrap();
    let Some(browser) = Browser::start(&scratch).await.unwrap() else {
        return;
    };
    let mut answers = healthy(&[
        SHOOT,
        "shoot--a--two",
        "shoot--a--quite-a-long-name-of-a-shoot-of-a-large-project",
    ]);
    answers.verdicts[0] = states::verdict(SHOOT, Outcome::LeasesExpired);
    answers.scalings[0] = incident(SHOOT);
    lasting(&mut answers);
    let page = serve(answers).await;
    let mut tab = browser.open(&page.url, 320).await.unwrap();
    tab.until("document.querySelectorAll('.cell.healthy').length === 2 && document.querySelector('.row')")
        .await
        .unwrap();
    let width = "document.documentElement.scrollWidth <= 320";
    assert_eq!(tab.evaluate(width).await.unwrap(), true, "the list");
    tab.evaluate("document.querySelector('.row').click()")
        .await
        .unwrap();
    tab.until("document.querySelector('#part-incidents table')")
        .await
        .unwrap();
    assert_eq!(tab.evaluate(width).await.unwrap(), true, "a shoot");
    let strip = tab
        .evaluate("document.querySelectorAll('#part-leases svg').length")
        .await
        .unwrap();
    assert_eq!(strip, 3, "two zones and all of them");

    // The verdicts end, and then the page itself. What is held down stays so.
    page.services.change(|answers| {
        for verdict in &mut answers.verdicts {
            verdict.valid_for = states::seconds(0);
        }
    });
    tab.until(
        "document.querySelector('.cell.held') && document.querySelectorAll('.cell.stale').length === 2",
    )
    .await
    .unwrap();
    page.services.change(lasting);
    tab.until("document.querySelectorAll('.cell.healthy').length === 2")
        .await
        .unwrap();
    drop(page);
    tab.until("!document.getElementById('broken').hidden")
        .await
        .unwrap();
    let text = tab
        .evaluate("document.getElementById('broken').textContent")
        .await
        .unwrap();
    assert!(
        text.as_str()
            .unwrap()
            .starts_with("No message from watchdogctl since "),
        "{text}"
    );
    assert_eq!(
        tab.evaluate("document.querySelectorAll('.cell.healthy').length")
            .await
            .unwrap(),
        0
    );
    let state = tab
        .evaluate("document.getElementById('shoot-state').textContent")
        .await
        .unwrap();
    assert!(state.as_str().unwrap().contains("not current"), "{state}");
    browser.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_choice_of_a_seed_opens_its_page() {
    let scratch = Scratch::new("page-seeds").unwrap();
    let Some(browser) = Browser::start(&scratch).await.unwrap() else {
        return;
    };
    let mut answers = healthy(&[SHOOT]);
    answers.verdicts[0] = states::verdict(SHOOT, Outcome::LeasesExpired);
    lasting(&mut answers);
    let page = serve_beside(answers, away().await).await;
    let mut tab = browser.open(&page.url, 320).await.unwrap();
    tab.until("document.querySelector('#seed option')?.textContent.startsWith('▼ 1 ')")
        .await
        .unwrap();
    let width = "document.documentElement.scrollWidth <= 320";
    assert_eq!(tab.evaluate(width).await.unwrap(), true, "the choice");
    tab.evaluate("$('seed').value = 1; $('seed').dispatchEvent(new Event('change'))")
        .await
        .unwrap();
    tab.until("location.search === '?seed=1' && document.querySelector('#programs .bad')")
        .await
        .unwrap();
    let chosen = tab
        .evaluate("[$('title').textContent, $('seed').value, document.querySelectorAll('.cell').length]")
        .await;
    assert_eq!(chosen.unwrap(), serde_json::json!(["away", "1", 0]));
    assert_at_home(&page, &tab);
    browser.close().await.unwrap();
}
