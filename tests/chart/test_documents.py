"""The documents name what there is, all of it and nothing else."""

import math
import re
import subprocess

import pytest
from chart import ROOT, SERVICES

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "charts").rglob("*.md")])
SOURCES = {path: path.read_text() for path in sorted((ROOT / "services").rglob("src/**/*.rs"))}
CONFIGURATION = (ROOT / "docs" / "reference" / "configuration.md").read_text()
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()
MONITORING = (ROOT / "docs" / "reference" / "monitoring.md").read_text()
MONTHS = {3: "three", 4: "four"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), target
        if anchor:
            assert anchor in {slug(line) for line in re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)}, target


def test_the_index_links_every_page():
    pages = {path for path in DOCUMENTS if path.is_relative_to(ROOT / "docs") and path.name != "README.md"}
    for index in DOCUMENTS:
        if index.name == "README.md" and index.is_relative_to(ROOT / "docs"):
            links = re.findall(r"\]\(([\w./-]+)", index.read_text())
            pages -= {(index.parent / target).resolve() for target in links}
    assert pages == set()


def test_decisions_are_few_short_and_in_their_index():
    folder = ROOT / "docs" / "explanation" / "adr"
    decisions = sorted(folder.glob("0*.md"))
    assert len(decisions) <= 20
    index = (folder / "README.md").read_text()
    for path in decisions:
        text = path.read_text()
        title = re.match(r"# (\d{4}) (.+)", text)
        assert f"| [{title[1]}]({path.name}) | {title[2]} |" in index and path.name.startswith(title[1])
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        assert parts == ["Context", "Decision", "Consequences"], path.name
        assert len(text.split()) <= 500, f"{path.name} is longer than a page"


def test_paths_and_decisions_that_the_tree_names_exist():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    decisions = {path.name[:4] for path in (ROOT / "docs" / "explanation" / "adr").glob("0*.md")}
    for name in listed.stdout.split("\0"):
        # Names of Gardener's documents, and of documents that do not exist.
        if not (ROOT / name).is_file() or name in ("tests/chart/test_gardener.py", "tests/chart/test_language.py"):
            continue
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        for path in re.findall(r"(?<![\w/-])docs/[\w./-]*\w", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
        for number in re.findall(r"\bADR\s+(\d{4})\b", text):
            assert number in decisions, f"{name} names ADR {number}"


def test_spelling_is_that_of_the_united_states():
    british = re.compile(
        r"\b(?:behaviour|colour|flavour|neighbour|favour|licence|centre|grey|misspelt"
        r"|(?:un)?synchronis|optimis|serialis|initialis|recognis|authoris|organis|normalis|minimis|maximis)\w*",
        re.IGNORECASE,
    )
    charts = [path for path in (ROOT / "charts").rglob("*") if path.is_file()]
    for document in {*DOCUMENTS, *charts}:
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", document.read_text())
        # Generated from the protos.
        if document.name != "api-reference.md":
            assert british.findall(text) == [], document.name


def test_the_changelog_counts_the_alerts():
    rules = (ROOT / "charts" / "dependency-watchdog" / "rules" / "dependency-watchdog.yaml").read_text()
    assert f" {rules.count('- alert:')} alerts" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_sources_that_are_named_exist(document):
    text = document.read_text()
    for named in re.findall(r"`([\w./-]+\.rs)`", text):
        whole = (ROOT / named).exists()
        part = any(str(path).endswith(f"/{named}") for path in SOURCES)
        assert whole or part, named
    for named in re.findall(r"`((?:services|tests|proto|images|\.\w+)/[\w./*-]*)`", text):
        assert any(ROOT.glob(named)), named


def test_every_metric_is_explained():
    found = {name for text in SOURCES.values() for name in metrics(text)}
    explained = set(re.findall(r"^- `(watchdog_\w+)` ", METRICS, re.MULTILINE))
    assert found - explained == set(), "not in docs/reference/metrics.md"
    assert explained - found == set(), "not in the sources"


def test_every_metric_has_its_type():
    types = dict(re.findall(r"^- `(watchdog_\w+)` (\w+):", METRICS, re.MULTILINE))
    for text in SOURCES.values():
        for name, kind in metrics(text).items():
            assert types[name] == kind, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_metrics_alerts_values_and_targets_that_are_named_exist(document):
    text = document.read_text()
    crates = {f"watchdog_{path.parent.name}" for path in (ROOT / "services" / "common").glob("*/Cargo.toml")}
    declared = {name for source in SOURCES.values() for name in metrics(source)}
    named = {name.removesuffix("_bucket") for name in re.findall(r"\bwatchdog_\w+", text)}
    assert named <= declared | crates, named - declared - crates
    rules = (ROOT / "charts" / "dependency-watchdog" / "rules" / "dependency-watchdog.yaml").read_text()
    alerts = set(re.findall(r"alert: (\w+)", rules))
    assert set(re.findall(r"\bDependencyWatchdog\w+", text)) <= alerts
    table = (ROOT / "charts" / "dependency-watchdog" / "README.md").read_text()
    values = set(re.findall(r"^\| `([\w.<>]+)` \|", table, re.MULTILINE))
    keys = {value.split(".")[0] for value in values} - {"<program>"}
    programs = {"leaseProbe", "scalingCoordinator", "weeder"}
    for value in re.findall(r"`((?:\w+\.)+\w+)`", text):
        first, rest = value.split(".", 1)
        if first in keys | programs and not value.endswith(".rs"):
            assert any(known.startswith(value) or known == f"<program>.{rest}" for known in values), value
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:`|^)make ([a-z][\w-]*)", text, re.MULTILINE):
        assert target in targets, target


def test_every_option_is_explained():
    files = [ROOT / "services/common/runtime/src/args.rs"]
    files += [ROOT / "services" / service / "src" / "config.rs" for service in SERVICES]
    found = set()
    for path in files:
        for body in re.findall(r"pub struct (?:Common)?Args {(.*?)\n}", SOURCES[path], re.DOTALL):
            names = re.findall(r"^    (?:pub )?(\w+): ", body, re.MULTILINE)
            found |= {name.replace("_", "-") for name in names if name != "common"}
    explained = {
        o for line in re.findall(r"^\|.*", CONFIGURATION, re.MULTILINE) for o in re.findall(r"`--([\w-]+)", line)
    }
    assert found - explained == set(), "not in docs/reference/configuration.md"
    assert explained - found == set(), "not in the sources"


def test_defaults_of_options_are_those_of_the_code():
    files = [ROOT / "services/common/runtime/src/args.rs"]
    files += [ROOT / "services" / service / "src" / "config.rs" for service in SERVICES]
    checked = set()
    for path in files:
        for attributes, field in re.findall(
            r"((?:^    #\[arg\(.*?\)\]\n)+)    (?:pub )?(\w+): ", SOURCES[path], re.DOTALL | re.MULTILINE
        ):
            option, program = field.replace("_", "-"), path.parts[-3]
            rows = re.findall(rf"^\|(?:[^|]*\|)? `--{option}[` ].*", CONFIGURATION, re.MULTILINE)
            (row,) = [row for row in rows if len(rows) == 1 or f"`{program}`" in row]
            default = re.search(r'default_value(?:_t)? = (?:"([^"]+)"|(?:Mode::)?(\w+))', attributes)
            least = re.search(r"range\((\w+)\.\.=(\w+)\)", attributes)
            if default:
                value = (default[1] or default[2].replace("_", "")).lower()
                assert re.search(rf"\| `?{re.escape(value)}`?[;| ]", row), row
                checked.add(option)
            if least:
                assert " to ".join(bound.replace("_", "") for bound in least.groups()) in row, row
    assert {"namespace", "grpc-addr", "request-rate", "mode", "release-timeout", "answer-memory"} <= checked


def test_every_command_of_watchdogctl_and_every_state_of_its_page_are_explained():
    page = (ROOT / "docs" / "reference" / "watchdogctl.md").read_text()
    source = SOURCES[ROOT / "services/watchdogctl/src/args.rs"]
    commands = re.search(r"Subcommand\)\]\n[^{]*enum \w+ {(.*?)\n}", source, re.DOTALL)[1]
    found = {name.lower() for name in re.findall(r"^    (\w+)[ ({,]", commands, re.MULTILINE)}
    table = page.split("| command | what it shows |")[1].split("\n\n")[0]
    first = "".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))
    # How a shell is set up is shown before the table.
    assert set(re.findall(r"`(\w+)`", first)) | set(re.findall(r"watchdogctl (completion|man)", page)) == found
    script = (ROOT / "services/watchdogctl/src/commands/ui/page.js").read_text()
    states = re.findall(r'\["(\S)", "([a-z ]+)"\]', script)
    assert states == [(glyph, name) for name, glyph in re.findall(r"^\| ([a-z ]+) \| `(\S)` \|", page, re.MULTILINE)]
    assert states


def test_every_field_is_explained():
    for file in "prober.rs", "prober/dependents.rs", "weeder.rs":
        text = SOURCES[ROOT / "services/common/api/src" / file]
        files = re.findall(r"struct \w+File {(.*?)\n}", text, re.DOTALL)
        fields = {name for body in files for name in re.findall(r"^    (?:r#|_)?(\w+): Option<", body, re.MULTILINE)}
        names = {re.sub(r"_(\w)", lambda letter: letter[1].upper(), field) for field in fields}
        names |= {name for body in files for name in re.findall(r'alias = "(\w+)"', body)}
        assert names, file
        for name in names:
            assert re.search(rf"[`.,]{name}[`,.]", CONFIGURATION), name


def constant(crate: str, name: str) -> str:
    """The value of a constant of a crate, or the fields of one that is a struct."""
    folder = ROOT / "services" / crate / "src"
    texts = [text for path, text in SOURCES.items() if path.is_relative_to(folder)]
    (found,) = {found for text in texts for found in re.findall(rf"const {name}: [^=]+= (.*?);\n", text, re.DOTALL)}
    return found


def number(crate: str, name: str) -> int:
    """A number, or a duration in the unit in which it is written."""
    return math.prod(map(int, re.findall(r"\d+", constant(crate, name).replace("_", ""))))


def quota(crate: str, name: str) -> list[int]:
    """The fields of a quota that are set."""
    fields = re.findall(r"\w+: ([\d *]+),", constant(crate, name))
    return [math.prod(map(int, field.split(" * "))) for field in fields]


def test_fixed_limits_are_those_of_the_code():
    runtime, kube, coordinator, probe = "common/runtime", "common/kube", "scaling-coordinator", "lease-probe"
    connections, calls = quota(runtime, "CONNECTIONS"), quota(runtime, "RPCS")
    answers = [f"{size >> 20} MiB" for size in quota(runtime, "ANSWER_BYTES")]
    scrapes = quota(runtime, "SCRAPES")
    pause, age = number(coordinator, "TRY_PAUSE") / 1000, number(runtime, "MAX_AGE") // 60
    election, others = body("impl Default for ElectionTiming"), body("impl LeaseTimes")
    usual, others = (re.findall(r"\w+: Duration::from_secs\((\d+)\)", text) for text in (election, others))
    client_go, slow = others[:3], others[3:]
    timeout, lifetime = number(runtime, "TIMEOUT"), number(runtime, "CONNECTION_TIMEOUT")
    kib = {name: number(runtime, name) >> 10 for name in ("MAX_REQUEST_BYTES", "MAX_HEADER_BYTES")}
    rows = [
        f"| connections | {' | '.join(f'{count:,}' for count in connections)} |",
        f"| calls and streams | {' | '.join(f'{count:,}' for count in calls)} |",
        f"| answers that are not written yet | {' | '.join(answers)} |",
        f"| least time between two probes of a shoot | {number(probe, 'MIN_SPACING')} s; near a loss "
        f"{number(probe, 'CROSSING_SPACING') / 1000:g} s |",
        f"| pause after a 429 | the server's Retry-After, {number('common/api', 'BACK_OFF_FOR_THROTTLED_REQUESTS')} s "
        f"to {number(probe, 'LONGEST_THROTTLE') // 60} min; a new kubeconfig ends it |",
        f"| time for the older of two contrary verdicts | {number(coordinator, 'CONFIRMATION_WAIT')} s |",
        f"| tries of a level | {number(coordinator, 'MAX_TRIES')}, after pauses of {pause:g} s and {2 * pause:g} s; "
        f"after a failed level {number(coordinator, 'FAILED_PAUSE')} s, doubling up to "
        f"{number(coordinator, 'LONGEST_PAUSE')} s |",
        f"| pause before a write that another client has reversed | {number(coordinator, 'REPETITION_PAUSE')} s |",
        f"| concurrent requests | scaling-coordinator those of {number(coordinator, 'MAX_SHOOTS')} shoots, "
        f"{number(coordinator, 'MAX_UP')} of them on their way up; weeder {number('weeder', 'MAX_REQUESTS')} |",
        f"| recoveries of a service that delete | {number('weeder', 'MAX_RECOVERIES')} in a minute |",
        f"| membership of lease-probe | Lease {number(kube, 'LEASE_DURATION')} s, renewed and listed every "
        f"{number(kube, 'INTERVAL')} s; {number(kube, 'MAX_MEMBERS')} replicas |",
        f"| leader election | Lease {usual[0]} s, renew deadline {usual[1]} s, a renewal or read every {usual[2]} s; "
        f"for {number(kube, 'SLOW_FOR')} s after an answer to it or to a write that took more than 0.75 s, "
        f"{slow[0]} s, {slow[1]} s and {slow[2]} s; in the drop-in image always {client_go[0]} s, {client_go[1]} s and "
        f"{client_go[2]} s |",
        f"| calls and streams that a standby passes on at once | {number(kube, 'MAX_CALLS')} |",
        f"| unproven or refused connections; of one address | {number(runtime, 'MAX_STRANGERS')}; "
        f"{number(runtime, 'MAX_STRANGERS_PER_ADDRESS')}. ",
        f"| age of a connection | GOAWAY after {age * 9 // 10} to {age} min, closed {number(runtime, 'AGE_GRACE')} s "
        "later |",
        f"| time to read a request; to write an answer other than a stream | {timeout} s; {timeout} s |",
        f"| size of a request; of its headers | {'; '.join(f'{size} KiB' for size in kib.values())} |",
        f"| connections | {number(runtime, 'MAX_CONNECTIONS')}, for {lifetime} s each, the last "
        f"{lifetime - number(runtime, 'KEEP_ALIVE_TIME')} s without another request. ",
        f"| concurrent answers of `/metrics`; to one address | {scrapes[0]}; {scrapes[-1]} |",
        f"| log lines that wait for standard error | {number(runtime, 'MAX_WAITING_LINES'):,}; ",
    ]
    for row in rows:
        assert f"\n{row}" in CONFIGURATION, row


def test_numbers_in_sentences_are_those_of_the_code():
    api, kube, runtime, certificates = "common/api", "common/kube", "common/runtime", "common/certificates"
    client, streams = "common/client", "common/watch-stream"
    weeder, probe, desk = "weeder", "lease-probe", "watchdogctl"
    ping = number(runtime, "PING_INTERVAL") + number(runtime, "PING_TIMEOUT")
    life, taken_over = number(certificates, "AUTHORITY_RENEW_BEFORE"), number(certificates, "HAND_OVER_BEFORE")
    renewed = number(certificates, "CERTIFICATE_LIFE") // number(certificates, "RENEW_CERTIFICATE_DIVISOR")
    place = number(probe, "PLACE_HELD_FOR") + number(probe, "PLACE_CHECKED_EVERY") / 1000
    small, large = number(probe, "SMALL_ANSWER") >> 10, number(probe, "LARGEST_ANSWER") >> 20
    silence = number(client, "HEARTBEAT_INTERVAL") * number(client, "SILENCE_LIMIT")
    sentences = {
        "reference/api.md": [
            f"pages of {number(runtime, 'DEFAULT_PAGE')} items, or of `page_size`, at most "
            f"{number(client, 'MAX_PAGE_SIZE'):,}",
            f"more than {number(client, 'MAX_SHOOTS'):,} shoots",
            f"a request of more than {number(runtime, 'MAX_REQUEST_BYTES') >> 10} KiB fails",
            f"Use a deadline of {number(client, 'CALL_TIMEOUT')} s: a snapshot or list waits at most "
            f"{number(streams, 'WAIT_FOR_REPLICAS')} s",
            f"After {silence} s of silence",
            f"(now() - at) / {number(client, 'DRIFT')},",
        ],
        "reference/configuration.md": [
            f"a mode that ends within {number(api, 'LATEST_END') // 86_400} days",
            f"up to {number(probe, 'VERSION_TIMEOUT')} s more to find out whether the API server answers",
            f"at most {number(probe, 'STANDS_STILL') / 1000:g} s",
            f"after a burst of {number(weeder, 'BURST')}",
        ],
        "reference/metrics.md": [
            f"delays of a timer from {number(runtime, 'SHORTEST_STALL')} s on",
            f"the TLS handshake took longer than {number(runtime, 'HANDSHAKE_TIMEOUT')} s",
            f"did not read an answer within {number(runtime, 'TIMEOUT')} s",
            f"largest clock skew of a node from {number(probe, 'NOTABLE_SKEW') // 1_000_000} s on",
        ],
        "reference/watchdogctl.md": [
            f"follow at most {number(desk, 'MOST_FOLLOWED')} seeds",
            f"does not answer within {number(desk, 'SEED_TIMEOUT')} s, hides no other",
            f"A list that is not complete after {number(desk, 'LIST_TIMEOUT')} s is an error.",
            f"has crashed within {number(desk, 'CRASHED_WITHIN') // 60} minutes",
            f"a replica does not answer within {number(desk, 'TIMEOUT')} s",
            f"ends within {number(desk, 'SOON_SECONDS') // 86_400} days",
            f"at least {number(desk, 'MAX_SKEW_SECONDS')} s off the median",
            f"has not reported for {number(desk, 'STREAM_GRACE')} s",
            f"takes at least {number('scaling-coordinator', 'LAST_REQUESTS')} s",
        ],
        "reference/chart.md": [f"replaced every {renewed} h"],
        "how-to/runbook.md": [
            f"lease-probe waits {number(api, 'BACK_OFF_FOR_THROTTLED_REQUESTS')} s to "
            f"{number(probe, 'LONGEST_THROTTLE') // 60} min",
            f"more than {number(probe, 'MOST_OBJECTS'):,} leases or nodes",
        ],
        "explanation/adr/0001-silence-is-proven-by-what-was-written.md": [
            f"whose answer took {number(probe, 'HELD_UP')} ms longer than twice the one before",
            f"lists are at most {number(probe, 'STANDS_STILL') / 1000:g} s apart",
        ],
        "explanation/adr/0005-start-and-failure-pace.md": [f"at most {number(probe, 'LONGEST_ABSENCE')} s"],
        "explanation/adr/0008-look-ahead-of-a-loss.md": [
            f"if that list takes longer than {number(probe, 'STALE_LIST')} s",
            f"at most {number(probe, 'NODE_LISTS_AT_ONCE')} such lists start at once",
            f"is abandoned after {number(probe, 'DEADLINE')} s",
        ],
        "explanation/adr/0027-a-slow-reader-costs-a-cursor.md": [
            f"It reads {number(streams, 'BATCH')} items",
            f"at least {number(streams, 'MIN_TOMBSTONES'):,},",
            f"within {ping} s",
        ],
        "explanation/adr/0029-answers-share-a-byte-budget.md": [
            f"grows to {small} KiB without asking",
            f"a page has at most {large} MiB",
            f"gives its place up after {number(probe, 'PLACE_HELD_FOR')} s, at most {place:g} s",
            f"a page is {number(kube, 'LIST_PAGE')} leases",
            f"at least {number(probe, 'SMALLEST_PAGE')}.",
        ],
        "explanation/adr/0031-the-programs-issue-their-own-certificates.md": [
            f"for {number(certificates, 'CERTIFICATE_LIFE')} h, and replaces it every {renewed} h",
            f"{MONTHS[life // 720]} months before its end a replica adds the next one, which is trusted for "
            f"{MONTHS[(life - taken_over) // 720]} months",
        ],
    }
    for page, named in sentences.items():
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (ROOT / "docs" / page).read_text())
        text = " ".join(text.split()).lower()
        for sentence in named:
            assert sentence.lower() in text, f"{page}: {sentence}"


def test_pages_have_the_formula_of_the_expiry_age():
    probe = "lease-probe"
    silent = number(probe, "DEFAULT_RENEW_INTERVAL") + number(probe, "TWO_TIMEOUTS")
    expiry = f"max(0.75 × grace, min({silent} s, grace − {number(probe, 'DETECTION_RESERVE')} s))"
    pages = [path.name for path in DOCUMENTS if f"`{expiry}`" in path.read_text()]
    assert {"configuration.md", "gardener.md", "0001-silence-is-proven-by-what-was-written.md"} <= set(pages)
    proto = (ROOT / "proto/gardener/watchdog/probe/v1/probe.proto").read_text()
    assert expiry.replace("×", "x").replace("−", "-") in proto


def body(start: str) -> str:
    """The item that begins so, in the only source that has it."""
    (found,) = [text for text in SOURCES.values() if re.search(rf"^{start}\b", text, re.MULTILINE)]
    return re.search(rf"^{start}\b.*?\n}}", found, re.DOTALL | re.MULTILINE)[0]


def derived(enum: str) -> set[str]:
    """The labels that are derived: the variants in snake case."""
    variants = re.findall(r"^    (\w+),$", enum, re.MULTILINE)
    return {re.sub(r"\B(?=[A-Z])", "_", variant).lower() for variant in variants}


def test_reasons_are_explained_where_people_look_them_up():
    api = (ROOT / "docs" / "reference" / "api.md").read_text()
    runbook = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
    failures = set(re.findall(r'=> \("(\w+)", ', body("impl ProbeFailure")))
    for found, page, heading in [
        (set(re.findall(r'=> \("(\w+)", Code::', body("impl ErrorReason"))), api, "## Errors and limits"),
        (set(re.findall(r'= "(\w+)"', body(r"label!\(pub\(crate\) enum CloseReason"))), METRICS, "### Reasons of"),
        (derived(body("pub enum Reason")), MONITORING, "`watchdog_retry_loop_failing` has the loop"),
        # Without those whose outcome is another one.
        (failures - {"connect", "tls", "timeout", "throttled"}, runbook, "## DependencyWatchdogProbesInconclusive"),
    ]:
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page.split(heading)[1].split("\n#")[0], re.MULTILINE)
        assert found and {name for row in rows for name in re.findall(r"\w+", row)} - {"reason"} == found, heading
    for name, code in re.findall(r'=> \("(\w+)", Code::(\w+)', body("impl ErrorReason")):
        code = re.sub(r"\B(?=[A-Z])", "_", code).upper()
        assert f"\n| `{name}` | `{code}` |" in api, name


def test_labels_are_values_of_the_apis_in_lower_case():
    protos = "".join(path.read_text() for path in (ROOT / "proto").rglob("*.proto"))
    for name in "HoldReason", "KeepReason":
        prefix = name.removesuffix("Reason").upper()
        values = {value.lower() for value in re.findall(rf"{prefix}_REASON_(\w+) = [1-9]", protos)}
        labels = set(re.findall(r'=> "(\w+)"', body(f"impl {name}")))
        assert values and (labels or derived(body(rf"pub(?:\(crate\))? enum {name}"))) == values, name


def test_pages_and_dashboards_say_how_long_a_scale_down_may_take():
    # With the default grace period of 40 s and renew interval of 10 s.
    reserve = str(40 - 10 - number("lease-probe", "TWO_TIMEOUTS"))
    dashboards = (ROOT / "charts" / "generate-dashboards").read_text()
    assert set(re.findall(r"acts (\d+) s after the threshold is crossed", dashboards)) == {reserve}
    performance = (ROOT / "docs" / "explanation" / "performance.md").read_text()
    assert f"kube-controller-manager acts {reserve} s after the crossing." in performance


def test_calls_and_values_of_the_apis_exist():
    protos = "".join(path.read_text() for path in (ROOT / "proto").rglob("*.proto"))
    for document in DOCUMENTS:
        text = document.read_text()
        for package, service, method in re.findall(r"(gardener\.watchdog\.\w+\.v1)\.(\w+)/(\w+)", text):
            assert f"package {package};" in protos and f"service {service} " in protos
            assert f"rpc {method}(" in protos, method
        for value in re.findall(r"\b(?:OUTCOME|SCOPE|DIRECTION|STEP|SKIP_REASON)_[A-Z_]+\b", text):
            assert re.search(rf"\b{value} = ", protos), value


def test_reference_of_the_apis_is_that_of_the_protos():
    checked = subprocess.run([ROOT / "docs" / "generate-api", "--check"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr


def test_reasons_of_events_are_explained():
    found = set()
    for path, text in SOURCES.items():
        text = text.split("#[cfg(test)]")[0]
        # Where one is made, not where it is declared.
        if not re.search(r"(?:return |push\(|publish\(|^ +|-> )Notice {", text, re.MULTILINE):
            continue
        reasons = re.findall(r'^ +reason: "(\w+)",$', text, re.MULTILINE)
        reasons += re.findall(r'\b(?:normal|warning)\([^"]*?"(\w+)"', text)
        # Where it depends on the direction: "let (event, action) = match ...".
        reasons += re.findall(r'=> \("(\w+)", "\w+"\)', text)
        assert reasons, path
        found |= set(reasons)
        # Nothing else gives one: the arms above, and the parameter of what makes a warning.
        given = re.findall(r"\b(?:normal|warning)\(\s*[\w.]+(?:\(\w*\))?,\s*([^,]+),", text)
        others = {name for name in given if not re.fullmatch(r'"\w+"', name)} - {"event", "reason"}
        assert not others, f"{path}: what is {others}?"
    section = MONITORING.split("## Kubernetes Events")[1].split("##")[0]
    explained = {r for line in re.findall(r"^\| `.*?` \|", section, re.MULTILINE) for r in re.findall(r"`(\w+)`", line)}
    assert found == explained


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def metrics(source: str) -> dict[str, str]:
    """Name and kind of the metrics that a source declares, tests aside."""
    declared = re.findall(r'(Counter|Gauge|Histogram)::new\(\s*"(watchdog_\w+)"', source.split("#[cfg(test)]")[0])
    return {name: kind.lower() for kind, name in declared}


def test_every_dashboard_has_its_picture():
    dashboards = {
        path.stem for path in (ROOT / "charts" / "dependency-watchdog" / "dashboards" / "grafana").glob("*.json")
    }
    pictures = {path.stem: path.stat().st_size for path in (ROOT / "docs" / "reference" / "dashboards").iterdir()}
    assert set(pictures) == dashboards, "run make pictures"
    assert max(pictures.values()) < 150_000
    assert all(f"(dashboards/{name}.png)" in MONITORING for name in dashboards)


def test_glossary_is_short():
    """Fifteen terms of our own, in one sentence each."""
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    terms = re.findall(r"^\| (\w[\w ]*) \| (.*) \|$", glossary, re.MULTILINE)[1:]
    assert 0 < len(terms) <= 15
    assert all(meaning.endswith(".") and ". " not in meaning for _, meaning in terms)
