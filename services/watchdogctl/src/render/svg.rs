//! The timeline of an incident as a picture: one SVG element without anything from elsewhere.

use watchdog_api::text::printable;
use watchdog_client::wire::forward;

use super::incident::{ShootIncident, duration_of, seconds};
use super::text;

const WIDTH: f64 = 960.0;
/// For the names of the lanes.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 46.0;
const LANE: f64 = 28.0;
/// Characters of a name at most, so that it fits.
const LONGEST_NAME: usize = 34;

const SILENT: &str = "#d9822b";
const CUT_OFF: &str = "#c23030";
const DOWN: &str = "#5c7080";
const INK: &str = "#182026";
const HEALTHY: &str = "#0d8050";

/// The picture. It has no empty line, which would end it within Markdown.
pub(crate) fn timeline(shoot: &str, incident: &ShootIncident<'_>) -> String {
    let sent = incident.incident;
    let before = forward(sent.last_renewal_to_verdict.as_ref()).as_secs_f64();
    let end = incident.length().as_secs_f64().max(1.0);
    let healthy = seconds(sent.verdict_to_healthy);
    let outcome = text::value(sent.outcome().as_str_name());
    let downs = incident.down_times();
    let bottom = TOP + LANE * (downs.len() + 1) as f64;
    let height = bottom + 34.0;
    let title = escaped(&format!("Timeline of the incident of {shoot}"));
    let mut picture = Picture {
        first: -before,
        last: end + 0.02 * (end + before),
        svg: format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        ),
    };
    picture.lane(TOP, "leases");
    picture.bar(TOP, -before, 0.0, SILENT, "not renewed, no verdict yet");
    picture.bar(TOP, 0.0, healthy.unwrap_or(end), CUT_OFF, &outcome);
    for (lane, down) in (1..).zip(downs) {
        let top = TOP + LANE * f64::from(lane);
        picture.lane(top, &down.name);
        picture.bar(
            top,
            down.from,
            down.to.unwrap_or(end).max(down.from),
            DOWN,
            "scaled down",
        );
    }
    // The moments that are lines through all lanes.
    picture.mark(0.0, bottom, INK, "verdict");
    let marked = incident.grace().as_secs_f64() - before;
    if before > 0.0 && marked < end {
        let would = "kube-controller-manager would mark the nodes Unknown";
        picture.mark(marked, bottom, CUT_OFF, would);
    }
    if let Some(healthy) = healthy {
        picture.mark(healthy, bottom, HEALTHY, "verdict healthy");
    }
    for tick in ticks(-before, end) {
        let x = picture.x(tick);
        picture.label(x, bottom + 20.0, "middle", DOWN, &duration_of(tick));
    }
    picture.svg + "</svg>\n"
}

/// The elements that are drawn so far, of the time from `first` to `last` in seconds since the start.
struct Picture {
    first: f64,
    last: f64,
    svg: String,
}

impl Picture {
    fn x(&self, seconds: f64) -> f64 {
        let share = ((seconds - self.first) / (self.last - self.first)).clamp(0.0, 1.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn label(&mut self, x: f64, y: f64, anchor: &str, color: &str, text: &str) {
        let text = escaped(text);
        self.svg.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>\n"
        ));
    }

    /// The name of a lane.
    fn lane(&mut self, top: f64, name: &str) {
        let name = super::table::cut(name, Some(LONGEST_NAME));
        self.label(LEFT - 8.0, top + 18.0, "end", INK, &name);
    }

    fn bar(&mut self, top: f64, from: f64, to: f64, color: &str, what: &str) {
        let what = escaped(&format!("{what} for {}", duration_of(to - from)));
        let (x, y, width) = (self.x(from), top + 5.0, (self.x(to) - self.x(from)).max(2.0));
        self.svg.push_str(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\" rx=\"2\" fill=\"{color}\">\
             <title>{what}</title></rect>\n"
        ));
    }

    /// A line through all lanes. The names of marks that are near each other stand in different lines.
    fn mark(&mut self, at: f64, bottom: f64, color: &str, name: &str) {
        let (x, top) = (self.x(at), TOP - 4.0);
        self.svg.push_str(&format!(
            "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{color}\" \
             stroke-dasharray=\"4 3\"/>\n"
        ));
        let y = if name.starts_with("verdict") { 16.0 } else { 34.0 };
        let anchor = if x > WIDTH - 200.0 { "end" } else { "start" };
        self.label(x, y, anchor, color, name);
    }
}

/// Round times for the axis, at most eight.
fn ticks(first: f64, end: f64) -> Vec<f64> {
    const STEPS: [f64; 13] = [
        1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0,
    ];
    let fits = |step: &&f64| (end - first) / **step <= 7.0;
    let step = STEPS.iter().find(fits).copied().unwrap_or((end - first) / 7.0);
    let start = (first / step).ceil() as i64;
    let ticks = (start..).map(|n| n as f64 * step);
    ticks.take_while(|tick| *tick <= end).take(9).collect()
}

/// Text of XML, and of Markdown around it: no character of it is markup.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use watchdog_proto::scaling::v1::Incident;

    use super::*;
    use crate::render::incident::tests::{after, ended};
    use crate::render::testing;

    /// The names of elements and the texts between them; fails if an element is not closed.
    fn parsed(svg: &str) -> (Vec<String>, Vec<String>) {
        let (mut open, mut elements, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for part in svg.split('<').skip(1) {
            let (tag, text) = part.split_once('>').unwrap();
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "{svg}");
            } else {
                let name = tag.split_whitespace().next().unwrap().trim_end_matches('/');
                elements.push(name.to_owned());
                if !tag.ends_with('/') {
                    open.push(name.to_owned());
                }
            }
            texts.extend(Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
        }
        assert!(open.is_empty(), "{open:?}");
        (elements, texts)
    }

    fn drawn(shoot: &str, incident: Incident) -> String {
        let scaling = after(incident);
        let incident = ShootIncident::all(&scaling, testing::pipe().now).next().unwrap();
        timeline(shoot, &incident)
    }

    #[test]
    fn the_picture_has_a_lane_for_the_leases_and_for_each_dependant() {
        let svg = drawn("shoot--a--b", ended());
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("\n\n"), "an empty line ends HTML in Markdown");
        let (elements, texts) = parsed(&svg);
        // The ground, two bars of the leases, one of the dependant.
        assert_eq!(elements.iter().filter(|name| *name == "rect").count(), 4);
        for text in [
            "Timeline of the incident of shoot--a--b",
            "leases",
            "kube-controller-manager",
            "not renewed, no verdict yet for 32s",
            "LEASES_EXPIRED for 5m00s",
            "scaled down for 5m00s",
            "verdict",
            "kube-controller-manager would mark the nodes Unknown",
            "verdict healthy",
            "0s",
            "1m00s",
        ] {
            assert!(texts.iter().any(|found| found == text), "{text}: {texts:?}");
        }
    }

    #[test]
    fn names_with_markup_are_text() {
        let mut incident = ended();
        let name = "</text><script href='x'>\u{1b}[2J & \"";
        for times in &mut incident.scale_times {
            times.resource.as_mut().unwrap().name = name.to_owned();
        }
        let svg = drawn("<b>\n\n", incident);
        let (elements, texts) = parsed(&svg);
        assert!(
            !elements.iter().any(|name| name == "script" || name == "b"),
            "{svg}"
        );
        assert!(texts.contains(&"&lt;/text&gt;&lt;script href=&#39;x&#39;&gt; [2J &amp; &quot;".to_owned()));
        assert!(!svg.contains("\n\n"), "{svg:?}");
    }

    #[test]
    fn an_incident_without_any_data_and_one_that_never_ends_are_drawn() {
        let endless = Incident {
            verdict_to_healthy: None,
            verdict_to_restored: testing::seconds(i64::MAX),
            ..ended()
        };
        let future = Incident {
            start_time: testing::ago(-100_000),
            ..Incident::default()
        };
        for incident in [Incident::default(), future, endless] {
            let svg = drawn("a", incident);
            parsed(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.len() < 20_000);
        }
    }
}
