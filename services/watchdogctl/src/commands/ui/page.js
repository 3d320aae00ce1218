"use strict";
// Everything that the programs report is set as text, never as markup.

const SILENCE = 6000; // Without a message for this time, the page shows what it has as stale.
const STRIP = 5 * 60 * 1000; // The time that the strips show.
const MOST_ROWS = 100;
// Glyph and name, the most urgent first.
const STATES = {
  failed: ["!", "scaling failed"], losing: ["↓", "cut off"], held: ["▼", "held down"],
  restoring: ["↑", "restoring"], unknown: ["?", "unknown"], stale: ["~", "stale"],
  healthy: ["·", "healthy"], skipped: ["–", "not probed"],
};
const ORDER = Object.keys(STATES);
const URGENT = ORDER.slice(0, 4);
const ATTENTION = ORDER.slice(0, 6);

const $ = (id) => document.getElementById(id);
const cells = new Map(); // By the name of the shoot.
const drawn = new Map(); // What was drawn last, by the part of the page.
let [order, seed, shoot, stream] = [[], null, null, null];
let [selected, opener, onlyState] = [null, null, null];
let [lastMessage, clockOffset, broken] = [Date.now(), 0, false];

const seedNumber = Number(new URLSearchParams(location.search).get("seed") ?? 0);
const now = () => Date.now() + clockOffset;
const state = (cell) => (broken && ["healthy", "skipped"].includes(cell.state) ? "stale" : cell.state);

function el(tag, attributes, ...children) {
  const kind = ["svg", "rect", "line"].includes(tag) ? "2000/svg" : "1999/xhtml";
  const element = document.createElementNS(`http://www.w3.org/${kind}`, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// === Numbers and times ===

function duration(millis) {
  const seconds = Math.floor(millis / 1000);
  const two = (n) => String(n).padStart(2, "0");
  if (millis > 0 && millis < 1000) return `${Math.round(millis)} ms`;
  if (millis > 0 && millis < 10000) return `${(millis / 1000).toFixed(1)} s`;
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor(seconds / 60) % 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${two(Math.floor(seconds / 3600) % 24)} h`;
}

function clock(millis) {
  const text = new Date(millis).toISOString();
  const isToday = text.slice(0, 10) === new Date(now()).toISOString().slice(0, 10);
  return `${isToday ? "" : `${text.slice(0, 10)} `}${text.slice(11, 19)}Z`;
}

// A text that counts on by itself: how long something has lasted.
function age(since) {
  const element = el("span", since ? { "data-since": since } : {}, "-");
  count(element);
  return element;
}

function count(element) {
  const { since } = element.dataset;
  if (since) element.textContent = `${duration(now() - since)} (${clock(Number(since))})`;
}

// As messages of the API have them: "1.5s", a time, and the name of a value.
const millis = (span) => (span ? Math.round(parseFloat(span) * 1000) : null);
const unix = (time) => (time ? Date.parse(time) : null);
const bare = (name, kind) => (name ?? "UNSPECIFIED").replace(`${kind}_`, "");
const lower = (name, kind) => bare(name, kind).toLowerCase();
const number = (value) => (value === null || value === undefined ? "-" : String(value));
const text = (element, wanted) => { if (element.textContent !== wanted) element.textContent = wanted; };
const plural = (count, word) => `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : "s"}`;

// === The seed ===

const badge = (name) => el("span", { class: `badge ${name}`, "aria-hidden": "true" }, STATES[name][0]);

// "was" if only an old report says so.
const title = (cell, name) => `${cell.outdated ? "was " : ""}${STATES[name][1]}`;

// True if another state is shown now.
function drawCell(cell) {
  const name = state(cell);
  const label = `${cell.name}: ${title(cell, name)}${cell.unprotected ? ", not protected" : ""}`;
  if (cell.label === label) return false;
  cell.element ??= el("div", { role: "option", tabindex: "-1", title: cell.name, "data-name": cell.name });
  cell.element.className = `cell ${name}${cell.unprotected ? " unprotected" : ""}${cell.outdated ? " outdated" : ""}`;
  cell.element.textContent = STATES[name][0];
  cell.element.setAttribute("aria-label", label);
  cell.element.setAttribute("aria-selected", String(cell.name === selected));
  if (!URGENT.includes(cell.drawn)) cell.shown = Date.now();
  Object.assign(cell, { label, drawn: name });
  return true;
}

function drawSeed() {
  const counts = Object.fromEntries(ORDER.map((name) => [name, 0]));
  let moved = false;
  for (const cell of cells.values()) {
    moved = drawCell(cell) || moved;
    counts[cell.drawn] += 1;
  }
  const grid = $("grid");
  if (moved || order.length !== cells.size) {
    const rank = (cell) => ORDER.indexOf(cell.drawn);
    const byName = (a, b) => (a.name < b.name ? -1 : 1);
    order = [...cells.values()].sort((a, b) => rank(a) - rank(b) || byName(a, b));
    const focused = document.activeElement;
    grid.replaceChildren(...order.map((cell) => cell.element));
    focused.focus({ preventScroll: true });
  }
  grid.className = cells.size > 1500 ? "dense" : cells.size <= 60 ? "named" : "";
  const unprotected = order.filter((cell) => cell.unprotected).length;
  const parts = ATTENTION.filter((name) => counts[name]).map((name) => `${counts[name]} ${STATES[name][1]}`);
  const isComplete = seed.programs.every(({ isFine }) => isFine);
  if (parts.length === 0) parts.push(isComplete ? "nothing needs attention" : "incomplete");
  if (unprotected) parts.push(`${unprotected} not protected (mode observe or off)`);
  text($("summary"), `${plural(cells.size, "shoot")}: ${parts.join(", ")}`);
  const urgent = URGENT.reduce((sum, name) => sum + counts[name], 0);
  document.title = `${broken ? "stale: " : ""}${urgent ? `▼ ${urgent} ` : ""}${seed.title} Dependency Watchdog`;
  drawLegend(counts);
  drawRows();
  filter();
}

function drawLegend(counts) {
  const legend = $("legend");
  for (const name of ORDER) {
    let button = legend.querySelector(`[data-state=${name}]`);
    if (!button) {
      button = el("button", { type: "button", "data-state": name }, badge(name), " ", el("span"));
      button.onclick = () => { onlyState = onlyState === name ? null : name; drawSeed(); };
      legend.append(button);
    }
    text(button.lastElementChild, `${counts[name].toLocaleString("en-US")} ${STATES[name][1]}`);
    button.hidden = counts[name] === 0 && onlyState !== name;
    button.setAttribute("aria-pressed", String(onlyState === name));
  }
}

function drawRows() {
  // Not those that are stale only because this page is.
  const attention = order.filter((cell) => ATTENTION.includes(cell.state));
  const rows = attention.slice(0, MOST_ROWS);
  $("attention-section").hidden = rows.length === 0;
  const list = $("rows");
  const key = JSON.stringify(rows, ["name", "drawn", "outdated", "share", "since", "note"]);
  if (drawn.get("rows") === key) return;
  drawn.set("rows", key);
  const focused = document.activeElement?.closest?.("#rows") && document.activeElement.dataset.name;
  list.replaceChildren(...rows.map((cell) => el("li", {}, row(cell))));
  if (focused) [...list.querySelectorAll("button")].find((button) => button.dataset.name === focused)?.focus();
  const more = attention.length - rows.length;
  text($("more"), more > 0 ? `${plural(more, "more shoot")} in the grid` : "");
}

function row(cell) {
  const attributes = { type: "button", class: `row ${cell.drawn}`, "data-name": cell.name, "data-shown": cell.shown };
  const button = el("button", attributes,
    el("b", {}, badge(cell.drawn), ` ${title(cell, cell.drawn)}`),
    el("span", { class: "name" }, cell.name),
    el("span", { class: "share" }, cell.share ? `${cell.share} expired` : ""),
    age(cell.since),
    el("span", { class: "note" }, cell.note ?? ""));
  button.onclick = () => open(cell.name, button);
  return button;
}

function filter() {
  const wanted = $("find").value.trim().toLowerCase();
  let first = null;
  for (const cell of order) {
    const isShown = (!onlyState || cell.drawn === onlyState) && cell.name.toLowerCase().includes(wanted);
    if (cell.element.hidden === isShown) cell.element.hidden = !isShown;
    if (isShown) first ??= cell.element;
  }
  const named = wanted && ` with "${wanted}" in its name`;
  const only = onlyState ? ` that is ${STATES[onlyState][1]}` : "";
  text($("none"), first || !order.length ? "" : `No shoot${only}${named}.`);
  // One cell takes part in the order of the Tab key.
  const current = $("grid").querySelector('[tabindex="0"]');
  if (first && (!current || current.hidden)) makeCurrent(first);
}

function makeCurrent(element) {
  for (const other of $("grid").querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
  element.tabIndex = 0;
}

function drawSeeds() {
  const key = JSON.stringify(seed.seeds);
  if (drawn.get("seeds") === key) return;
  drawn.set("seeds", key);
  $("seeds").hidden = seed.seeds.length < 2;
  const option = ([name, urgent], index) => el("option", { value: index }, `${urgent ? `▼ ${urgent} ` : ""}${name}`);
  $("seed").replaceChildren(...seed.seeds.map(option));
  $("seed").value = seedNumber;
}

function drawPrograms() {
  const line = ({ text, isFine }) => el("li", { class: isFine ? "" : "bad" }, text);
  $("programs").replaceChildren(...seed.programs.map(line));
}

function drawConnection() {
  $("broken").hidden = !broken;
  if (broken) {
    text($("broken"), `No message from watchdogctl since ${clock(lastMessage + clockOffset)}. Everything below is as ` +
      "of then. Trying again; if watchdogctl has ended, start it again and open the address that it prints.");
  }
  text($("as-of"), seed ? `as of ${clock(seed.at)}` : "Connecting");
}

function setBroken() {
  broken = true;
  if (seed) drawSeed();
  drawConnection();
  drawHead();
}

// === Streams ===

// Opens the stream again when the server refuses it; the browser itself does so only when the connection breaks.
function follow() {
  stream?.close();
  stream = new EventSource(`seeds/${seedNumber}${selected ? `/${encodeURIComponent(selected)}` : ""}`);
  stream.onmessage = (event) => onSeed(JSON.parse(event.data));
  stream.onerror = ({ target }) => {
    setBroken();
    if (target.readyState === EventSource.CLOSED) setTimeout(() => stream === target && follow(), 3000);
  };
}

function onSeed(message) {
  seed = { ...seed, ...message };
  clockOffset = message.at - Date.now();
  lastMessage = Date.now();
  if (message.cells || broken) {
    broken = false;
    const names = new Set(seed.cells.map((cell) => cell.name));
    for (const name of cells.keys()) if (!names.has(name)) cells.delete(name);
    const absent = { unprotected: false, outdated: false, share: null, since: null, note: null };
    for (const cell of seed.cells) cells.set(cell.name, Object.assign(cells.get(cell.name) ?? {}, absent, cell));
    text($("title"), seed.title);
    drawSeeds();
    drawPrograms();
    drawSeed();
  }
  drawConnection();
  if (message.shoot?.name !== selected) return;
  shoot = message.shoot;
  drawShoot();
}

function tick() {
  if (!broken && Date.now() - lastMessage > SILENCE) setBroken();
  drawHead();
  document.querySelectorAll("[data-since]").forEach(count);
}

// === One shoot ===

function open(name, from) {
  close(false);
  selected = name;
  opener = from;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  cells.get(name)?.element.setAttribute("aria-selected", "true");
  text($("shoot-name"), name);
  $("shoot").hidden = false;
  document.body.classList.add("open");
  drawHead();
  $("shoot").focus();
  follow();
}

function close(isFocusMoved = true) {
  cells.get(selected)?.element.setAttribute("aria-selected", "false");
  shoot = null;
  $("shoot").hidden = true;
  clearParts();
  document.body.classList.remove("open");
  if (!isFocusMoved) return;
  history.replaceState(null, "", location.pathname + location.search);
  const cell = cells.get(selected)?.element;
  (opener?.isConnected ? opener : cell)?.focus();
  selected = null;
  follow();
}

function drawHead() {
  if (!selected) return;
  const isOld = broken || !shoot || now() - shoot.at > SILENCE;
  const name = shoot?.state && state(shoot);
  $("shoot-state").replaceChildren(
    name ? el("span", { class: `badge ${name}` }, `${STATES[name][0]} ${STATES[name][1]}`) : "",
    shoot ? ` as of ${clock(shoot.at)}` : "Reading",
    shoot && !name ? ": no program reports this shoot" : "",
    shoot && isOld ? el("span", { class: "warn" }, ". No message since: not current") : "");
}

function drawShoot() {
  drawHead();
  if (!shoot.state) return clearParts(); // It is gone.
  const { verdict, scaling, samples } = shoot;
  const { validFor, age: _, observeTime, expireTime, ...lasting } = verdict?.message ?? {};
  part("verdict", "Verdict", [lasting, verdict?.evidence], () => verdict && drawVerdict(verdict));
  if (verdict) {
    const left = verdict.validForMillis;
    text($("valid-for"), left > 0 ? duration(left) : `no longer valid, for ${duration(-left)}`);
    $("valid-for").className = left > 0 ? "" : "warn";
    text($("observed"), `${clock(shoot.at - verdict.observedMillisAgo)} by ${verdict.message.observer}`);
  }
  part("leases", "Leases by zone, the last 5 min", [samples, shoot.at], () => drawStrips(samples, verdict));
  part("scaling", "Scaling", [scaling, shoot.isCurrent], () => scaling && drawScaling(scaling));
  const known = [scaling?.incident, scaling?.lastIncident].filter(Boolean);
  const incidents = known.map((incident, index) => ({ ...incident, ...shoot.incidents[index] }));
  part("incidents", "Incidents", incidents, () => drawIncidents(incidents));
}

// Draws a part of the panel again only if it changed, so a selection of text stays.
function part(id, title, content, draw) {
  const key = JSON.stringify(content ?? null);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  let section = document.getElementById(`part-${id}`);
  if (!section) {
    section = el("section", { id: `part-${id}`, "aria-label": title });
    $("parts").append(section);
  }
  section.replaceChildren(el("h3", {}, title), ...[draw() ?? el("p", { class: "dim" }, "None.")].flat());
}

function clearParts() {
  $("parts").replaceChildren();
  for (const key of drawn.keys()) if (!["rows", "seeds"].includes(key)) drawn.delete(key);
}

function list(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, ...shown.flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));
}

function drawVerdict({ message, rule, evidence }) {
  const skipped = message.skipReason ? ` ${bare(message.skipReason, "SKIP_REASON")}` : "";
  return [
    el("p", {}, el("b", {}, `${bare(message.outcome, "OUTCOME")}${skipped}`)), el("p", {}, message.message),
    el("p", { class: "dim" }, rule),
    list([["since", age(unix(message.outcomeChangeTime))], ["valid for", el("span", { id: "valid-for" })],
      ["observed", el("span", { id: "observed" })]]),
    evidence ? el("pre", {}, evidence) : "",
  ];
}

function lane(label, middle, value = "") {
  return el("div", { class: "lane" }, el("span", {}, label), middle, el("span", {}, value));
}

function drawStrips(samples, verdict) {
  if (!samples?.length) return null;
  const end = shoot.at;
  // Beyond the last valid verdict, nothing is known.
  const known = Math.min(end, verdict ? end + verdict.validForMillis : end);
  const zones = [...new Set(samples.flatMap((sample) => sample.zones.map(([zone]) => zone)))].sort();
  const ofZone = (zone) => (sample) => sample.zones.find(([name]) => name === zone)?.slice(1);
  const strips = zones.map((zone) => strip(zone || "(no zone)", samples, ofZone(zone), end, known, null));
  const threshold = verdict?.message.evidence?.threshold ?? null;
  const all = strip("all zones", samples, (sample) => [sample.candidates, sample.expired], end, known, threshold);
  const scale = lane("", el("p", { class: "scale" }, el("span", {}, clock(end - STRIP)), el("span", {}, clock(end))));
  const since = `Share of expired leases. Counts have not changed since ${clock(samples.at(-1).at)}.`;
  return [...strips, all, scale, el("p", { class: "dim" }, since)];
}

function strip(label, samples, counts, end, known, threshold) {
  const x = (at) => (100 * (Math.max(at, end - STRIP) - (end - STRIP))) / STRIP;
  let value = "-";
  const picture = el("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  samples.forEach((sample, index) => {
    const found = counts(sample);
    const until = Math.min(samples[index + 1]?.at ?? known, known);
    value = found ? `${found[1]} of ${found[0]} expired` : "-";
    if (!found || until <= end - STRIP || until <= sample.at) return;
    const place = { x: x(sample.at), width: x(until) - x(sample.at) };
    const share = found[0] ? (100 * found[1]) / found[0] : 0;
    picture.append(el("rect", { ...place, y: 0, height: 100 }));
    picture.append(el("rect", { ...place, y: 100 - share, height: share, class: "expired" }));
  });
  if (threshold !== null) {
    picture.append(el("line", { x1: 0, x2: 100, y1: 100 - threshold * 100, y2: 100 - threshold * 100 }));
  }
  picture.setAttribute("aria-label", `${label}: ${value}`);
  return lane(label, picture, value);
}

function drawScaling(scaling) {
  const direction = lower(scaling.direction, "DIRECTION");
  const why = direction === "hold" ? ` (${bare(scaling.holdReason, "HOLD_REASON")})` : "";
  const held = scaling.meltdownProtectionActive ? "; dependants are held down" : "";
  const until = scaling.modeExpireTime ? ` until ${clock(unix(scaling.modeExpireTime))}` : "";
  const head = ["level", "dependant", "state", "replicas", "ready", "recorded", "target"];
  const isNow = (one) => scaling.level !== undefined && one.level === scaling.level;
  const byLevel = (scaling.resources ?? []).toSorted((a, b) => (a.level ?? -1) - (b.level ?? -1));
  const rows = byLevel.map((one) => el("tr", isNow(one) ? { class: "now" } : {},
    el("td", {}, `${number(one.level)}${isNow(one) ? " now" : ""}`),
    el("td", {}, `${one.resource?.kind}/${one.resource?.name}`, el("div", { class: "dim" }, one.message ?? "")),
    el("td", { class: "number" }, bare(one.state, "RESOURCE_STATE")),
    ...[one.specReplicas, one.readyReplicas, one.recordedReplicas, one.targetReplicas]
      .map((n) => el("td", { class: "number" }, number(n)))));
  return [
    shoot.isCurrent ? null : el("p", { class: "warn" }, "The coordinator is not connected: this is its last report."),
    list([
      ["direction", `${direction}${why}${held}`], ["since", age(unix(scaling.directionChangeTime))],
      ["state", `${lower(scaling.state, "FLOW_STATE")}, level ${number(scaling.level)}`], ["why", scaling.reason],
      ["mode", `${lower(scaling.mode, "MODE")}, ${shoot.modeSource}${until}`],
      ["next try", scaling.retryTime && clock(unix(scaling.retryTime))], ["reported by", scaling.replica],
    ]),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Dependants by level" },
      el("table", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name))), ...rows)),
  ].filter(Boolean);
}

function drawIncidents(incidents) {
  return incidents.length ? incidents.flatMap(drawIncident)
    : [el("p", { class: "dim" }, "None since the coordinator became the leader.")];
}

function drawIncident(incident) {
  const [started, healthy] = [unix(incident.startTime), millis(incident.verdictToHealthy)];
  const inMillis = (seconds) => (seconds === null ? null : Math.round(seconds * 1000));
  const moments = incident.moments.map((one) => ({ ...one, after: inMillis(one.after) }));
  const renewed = millis(incident.lastRenewalToVerdict);
  if (renewed !== null) moments.unshift({ after: -renewed, what: "last renewal", who: "kubelets" });
  const end = inMillis(incident.length);
  const times = [...new Set([...moments.map((one) => one.after), end])].sort((a, b) => a - b);
  // Gaps are drawn by their square roots: seconds and hours fit into one picture.
  let sum = 0;
  const places = times.map((at, index) => (sum += Math.sqrt(index ? at - times[index - 1] : 0)));
  const x = (at) => (sum ? (100 * places[times.indexOf(at)]) / sum : 0);
  const marks = moments.map((one) => one.after);
  const track = (from, to, kind, label) => {
    const bar = el("div", { class: kind });
    bar.style.left = `${x(from)}%`;
    bar.style.width = `${x(to ?? end) - x(from)}%`;
    const lines = marks.map((at) => { const line = el("i"); line.style.left = `${x(at)}%`; return line; });
    return el("div", { class: "track", role: "img", "aria-label": label }, ...lines, bar);
  };
  const took = (from, to) => `${duration((to ?? end) - from)}${to === null && incident.isRunning ? " so far" : ""}`;
  const cutOff = took(times[0], healthy);
  const drawnLanes = [lane("nodes cut off", track(times[0], healthy, "losing", `cut off for ${cutOff}`), cutOff)];
  for (const one of incident.lanes) {
    const [from, to] = [inMillis(one.from), inMillis(one.to)];
    const label = `${one.name} down for ${took(from, to)}`;
    drawnLanes.push(lane(one.name, track(from, to, "held", label), took(from, to)));
  }
  const after = (span) => `${span < 0 ? "−" : "+"}${duration(Math.abs(span))}`;
  const list = moments.map((one) => el("tr", {}, el("td", { class: "number" }, after(one.after)),
    el("td", {}, clock(started + one.after)), el("td", {}, one.who), el("td", {}, one.what)));
  return [
    el("p", {}, el("b", {}, `${clock(started)}, ${incident.summary}`)),
    incident.reason ? el("p", {}, incident.reason) : "",
    incident.lastError ? el("p", { class: "warn" }, incident.lastError) : "", ...drawnLanes,
    lane("", el("p", { class: "scale" }, el("span", {}, after(times[0])), el("span", {}, after(end)))),
    el("p", { class: "dim" }, "Long gaps are drawn shorter; the times are exact."),
    el("div", { class: "scroll" }, el("table", {}, el("tr", {},
      ...["after", "at", "by", "what"].map((name) => el("th", { scope: "col" }, name))), ...list)),
  ];
}

// === Keys ===

function moveInGrid(event) {
  const grid = $("grid");
  const cell = event.target.closest("[role=option]");
  if (!cell) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    cell.click();
    return;
  }
  const shown = [...grid.children].filter((element) => !element.hidden);
  const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const at = shown.indexOf(cell);
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const ends = { Home: 0, End: shown.length - 1 };
  const target = event.key in steps ? shown[at + steps[event.key]] : shown[ends[event.key]];
  if (!target) return;
  event.preventDefault();
  makeCurrent(target);
  target.focus();
}

$("grid").addEventListener("keydown", moveInGrid);
$("grid").addEventListener("click", (event) => {
  const cell = event.target.closest("[role=option]");
  if (!cell) return;
  makeCurrent(cell);
  open(cell.dataset.name, cell);
});
$("find").addEventListener("input", filter);
$("close").addEventListener("click", () => close());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("shoot").hidden) close();
  if (event.key === "/" && event.target !== $("find")) {
    event.preventDefault();
    if (selected) close();
    $("find").focus();
  }
});
$("seed").addEventListener("change", (event) => { location.search = `?seed=${event.target.value}`; });
window.addEventListener("hashchange", () => location.reload());
setInterval(tick, 1000);
const asked = new URLSearchParams(`shoot=${location.hash.slice(1)}`).get("shoot"); // decodeURIComponent may throw.
if (asked) open(asked, null); else follow();
