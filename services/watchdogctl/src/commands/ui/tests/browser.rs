//! The page in Debian's headless Chromium. Skipped where that is not installed.

use std::sync::Arc;

use watchdog_proto::probe::v1::ZoneEvidence;
use watchdog_proto::scaling::v1::{Direction, Incident, Mode, ScaleTimes, ShootScaling};
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
            scale_times: vec![ScaleTimes {
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

/// A page in a browser.
struct OpenPage {
    served: Served,
    browser: Browser,
    tab: Tab,
    _scratch: Arc<Scratch>,
}

impl OpenPage {
    /// None without a browser.
    async fn open(served: Served, width: u32) -> Option<Self> {
        let scratch = Scratch::new("page").unwrap();
        let browser = Browser::start(&scratch).await.unwrap()?;
        let tab = browser.open(&served.url, width).await.unwrap();
        Some(Self {
            served,
            browser,
            tab,
            _scratch: scratch,
        })
    }

    async fn until(&mut self, expression: &str) {
        self.tab.until(expression).await.unwrap();
    }

    async fn eval(&mut self, expression: &str) -> Value {
        self.tab.evaluate(expression).await.unwrap()
    }

    async fn text(&mut self, id: &str) -> String {
        let text = self.eval(&format!("$('{id}').textContent")).await;
        text.as_str().unwrap().to_owned()
    }

    /// Nothing sticks out of a narrow screen.
    async fn assert_fits(&mut self, what: &str) {
        let fits = self.eval("document.documentElement.scrollWidth <= 320").await;
        assert_eq!(fits, true, "{what}");
    }

    /// Nothing was refused, nothing failed, and everything came from the page's own address.
    async fn close_at_home(self) {
        let (tab, url) = (&self.tab, &self.served.url);
        assert_eq!(tab.complaints(), [""; 0]);
        assert!(tab.requests().len() > 3, "{:?}", tab.requests());
        let is_own = |request: &String| request.starts_with(url) || request == "about:blank";
        assert!(tab.requests().iter().all(is_own), "{:?}", tab.requests());
        self.browser.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_markup_are_text_everywhere() {
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
    let Some(mut page) = OpenPage::open(serve(answers).await, 1280).await else {
        return;
    };
    page.until("document.querySelector('.row')").await;
    page.eval("document.querySelector('.row').click()").await;
    page.until("document.querySelector('#part-incidents table')")
        .await;
    let shown = page.eval("document.body.textContent").await;
    let texts = "name replica message observer zone reason owner step dependant started failed lane";
    for text in texts.split(' ') {
        let found = shown.as_str().unwrap().contains(&markup(text));
        assert!(found, "{text} is not in {shown}");
    }
    let made = page.eval("document.querySelectorAll('img, .evil').length").await;
    assert_eq!(made, 0);
    page.close_at_home().await;
}

/// Draws all cells anew and counts what changes in the grid: the elements that come and go, and their attributes.
const CHANGES_OF_A_DRAW: &str = "(() => {
  const observer = new MutationObserver(() => {});
  observer.observe($('grid'), { attributes: true, childList: true, subtree: true });
  cells.clear();
  onSeed(seed);
  const changes = observer.takeRecords();
  return changes.reduce((sum, { addedNodes, removedNodes }) => sum + 1 + addedNodes.length + removedNodes.length, 0);
})()";

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_shoots_are_drawn_in_linear_time_and_the_keyboard_reaches_them() {
    let names: Vec<String> = (0..MANY)
        .map(|n| format!("shoot--project--cluster-{n:04}"))
        .collect();
    let mut answers = healthy(&names.iter().map(String::as_str).collect::<Vec<_>>());
    answers.verdicts[4_000] = states::verdict(&names[4_000], Outcome::LeasesExpired);
    answers.scalings[4_000] = incident(&names[4_000]);
    lasting(&mut answers);
    let Some(mut page) = OpenPage::open(serve(answers).await, 1280).await else {
        return;
    };
    page.until(
        "document.querySelectorAll('.cell.healthy').length === 4999 && document.querySelector('.row')",
    )
    .await;
    assert_eq!(page.text("summary").await, "5,000 shoots: 1 cut off");
    // Each goes and comes once, and none is moved for another.
    let changes = page.eval(CHANGES_OF_A_DRAW).await;
    let changes = usize::try_from(changes.as_u64().unwrap()).unwrap();
    assert!((2 * MANY..3 * MANY).contains(&changes), "{changes}");
    assert_eq!(page.eval("$('grid').children.length").await, MANY);

    // What is urgent comes first, in the list and in the grid.
    let first = "document.querySelector('#grid > :first-child')";
    let label = page.eval(&format!("{first}.getAttribute('aria-label')")).await;
    assert_eq!(label, format!("{}: cut off", names[4_000]));
    assert_eq!(page.eval(&format!("{first}.textContent")).await, "↓");
    page.eval(&format!("{first}.focus()")).await;
    let keys = ["ArrowRight", "ArrowRight", "ArrowLeft"];
    page.tab.press(&keys).await.unwrap();
    let focused = "document.activeElement.dataset.name";
    assert_eq!(page.eval(focused).await, names[0]);
    let keys = ["ArrowDown", "ArrowUp", "End", "Home", "Enter"];
    page.tab.press(&keys).await.unwrap();
    page.until("document.querySelector('#part-incidents table')")
        .await;
    assert_eq!(page.text("shoot-name").await, names[4_000]);
    assert_eq!(page.eval("document.activeElement.id").await, "shoot");
    page.tab.press(&["Escape"]).await.unwrap();
    assert_eq!(page.eval("$('shoot').hidden").await, true);
    assert_eq!(page.eval(focused).await, names[4_000], "the focus comes back");

    // To find one.
    page.tab.press(&["/"]).await.unwrap();
    page.eval("$('find').value = 'cluster-1234'; filter()").await;
    let shown = "[...$('grid').children].filter((cell) => !cell.hidden).map((cell) => cell.dataset.name)";
    assert_eq!(page.eval(shown).await, serde_json::json!([names[1_234]]));
    assert_eq!(page.eval("document.activeElement.id").await, "find");
    assert_eq!(page.text("none").await, "");
    page.eval("$('find').value = 'nowhere'; filter()").await;
    assert_eq!(page.eval(shown).await, serde_json::json!([]));
    let none = "No shoot with \"nowhere\" in its name.";
    assert_eq!(page.text("none").await, none);
    page.close_at_home().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stale_is_never_shown_as_healthy_and_a_narrow_screen_has_room() {
    let mut answers = healthy(&[
        SHOOT,
        "shoot--a--two",
        "shoot--a--quite-a-long-name-of-a-shoot-of-a-large-project",
    ]);
    answers.verdicts[0] = states::verdict(SHOOT, Outcome::LeasesExpired);
    answers.scalings[0] = incident(SHOOT);
    lasting(&mut answers);
    let Some(mut page) = OpenPage::open(serve(answers).await, 320).await else {
        return;
    };
    page.until("document.querySelectorAll('.cell.healthy').length === 2 && document.querySelector('.row')")
        .await;
    page.assert_fits("the list").await;
    page.eval("document.querySelector('.row').click()").await;
    page.until("document.querySelector('#part-incidents table')")
        .await;
    page.assert_fits("a shoot").await;
    let strips = page
        .eval("document.querySelectorAll('#part-leases svg').length")
        .await;
    assert_eq!(strips, 3, "two zones and all of them");

    // The verdicts end, and then the page itself. What is held down stays so.
    page.served.services.change(|answers| {
        for verdict in &mut answers.verdicts {
            verdict.valid_for = states::seconds(0);
        }
    });
    page.until(
        "document.querySelector('.cell.held') && document.querySelectorAll('.cell.stale').length === 2",
    )
    .await;
    page.served.services.change(lasting);
    page.until("document.querySelectorAll('.cell.healthy').length === 2")
        .await;
    page.served.stop();
    page.until("!$('broken').hidden").await;
    let broken = page.text("broken").await;
    assert!(
        broken.starts_with("No message from watchdogctl since "),
        "{broken}"
    );
    let healthy = page
        .eval("document.querySelectorAll('.cell.healthy').length")
        .await;
    assert_eq!(healthy, 0);
    let state = page.text("shoot-state").await;
    assert!(state.contains("not current"), "{state}");
    page.browser.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_shoot_that_is_gone() {
    let mut answers = healthy(&[SHOOT]);
    lasting(&mut answers);
    let Some(mut page) = OpenPage::open(serve(answers).await, 1280).await else {
        return;
    };
    page.until("document.querySelector('.cell.healthy')").await;
    page.eval("document.querySelector('.cell').click()").await;
    page.until("document.querySelector('#part-verdict b')").await;
    let services = page.served.services.clone();
    services.change(|answers| answers.refusal = Some(Status::unavailable("draining")));
    page.until("document.querySelectorAll('#programs .bad').length === 3")
        .await;
    services.change(|answers| *answers = Answers::default());
    page.until("$('shoot-state').textContent.includes('no program reports this shoot')")
        .await;
    assert_eq!(page.eval("$('parts').textContent").await, "");
    page.close_at_home().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_choice_of_a_seed_opens_its_page() {
    let mut answers = healthy(&[SHOOT]);
    answers.verdicts[0] = states::verdict(SHOOT, Outcome::LeasesExpired);
    lasting(&mut answers);
    let served = serve_beside(answers, away().await).await;
    let Some(mut page) = OpenPage::open(served, 320).await else {
        return;
    };
    page.until("document.querySelector('#seed option')?.textContent.startsWith('▼ 1 ')")
        .await;
    page.assert_fits("the choice").await;
    page.eval("$('seed').value = 1; $('seed').dispatchEvent(new Event('change'))")
        .await;
    page.until("location.search === '?seed=1' && document.querySelector('#programs .bad')")
        .await;
    let chosen = "[$('title').textContent, $('seed').value, document.querySelectorAll('.cell').length]";
    assert_eq!(page.eval(chosen).await, serde_json::json!(["away", "1", 0]));
    page.close_at_home().await;
}

/// A browser opens six connections to one address.
#[tokio::test(flavor = "multi_thread")]
async fn four_tabs_of_a_page_are_live_with_a_shoot_open() {
    let mut answers = healthy(&[SHOOT]);
    lasting(&mut answers);
    let Some(mut page) = OpenPage::open(serve(answers).await, 1280).await else {
        return;
    };
    page.until("document.querySelector('.cell.healthy')").await;
    let address = format!("{}#{SHOOT}", page.served.url);
    let mut tabs = Vec::new();
    for _ in 0..4 {
        let mut tab = page.browser.open(&address, 1280).await.unwrap();
        tab.until("document.querySelector('#part-verdict')")
            .await
            .unwrap();
        tabs.push(tab);
    }
    page.close_at_home().await;
}

/// People edit addresses and paste them into a tab that is open.
#[tokio::test(flavor = "multi_thread")]
async fn any_name_in_the_address_is_opened_and_a_changed_one_too() {
    let mut answers = healthy(&[SHOOT]);
    lasting(&mut answers);
    let Some(mut page) = OpenPage::open(serve(answers).await, 1280).await else {
        return;
    };
    page.until("document.querySelector('.cell.healthy')").await;
    for (part, name) in [("100%", "100%"), ("%E0%A4%A", "\u{fffd}"), ("a%20b%26c", "a b&c")] {
        let address = format!("{}#{part}", page.served.url);
        let mut tab = page.browser.open(&address, 1280).await.unwrap();
        let opened = format!(
            "document.querySelector('.cell.healthy') && $('shoot-name').textContent.includes('{name}')"
        );
        tab.until(&opened).await.unwrap();
        tab.until("$('shoot-state').textContent.includes('no program reports this shoot')")
            .await
            .unwrap();
        tab.evaluate(&format!("location.hash = '{SHOOT}'")).await.unwrap();
        tab.until("document.querySelector('#part-verdict')")
            .await
            .unwrap();
        tab.evaluate("location.hash = ''").await.unwrap();
        tab.until("$('shoot').hidden && document.querySelector('.cell.healthy')")
            .await
            .unwrap();
        assert_eq!(tab.complaints(), [""; 0]);
    }
    page.close_at_home().await;
}
