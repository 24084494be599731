"""The pages match the code: names, defaults, exit codes, links, the first job."""

import ast
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group

from benchmarks.ours.timeline import STEPS
from onceward import DeltaSink, IcebergSink, KafkaSink, KafkaSource
from onceward.common.errors import ExitCode
from onceward.common.killpoints import KillPoint
from onceward.coordinator.service.needs import NEEDS
from onceward.coordinator.service.rights import KEYS, MAX_TOKENS, Credentials, Right, parse_rights
from onceward.dev.commands import dev
from onceward.driver.options import NOT_GIVEN
from onceward.driver.pipeline import Pipeline
from onceward.driver.restarts import Restart
from onceward.driver.streaming.pipeline import StreamingPipeline
from onceward.driver.streaming.sink import StreamSink
from onceward.driver.tracing import MAX_SLOTS
from onceward.operate.cli import app
from onceward.protocol.facts import AbortReason
from onceward.protocol.phases import Phase
from onceward.protocol.requests import MAX_QUEUED
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.sources.kafka.driver.options import OPTIONS, Mode
from onceward.watch.metrics.coordinator import COORDINATOR_METRICS
from onceward.watch.metrics.driver import DRIVER_METRICS
from onceward.watch.metrics.places import MAX_JOBS, OTHERS
from onceward.watch.metrics.registry import Described
from onceward.watch.traces.names import Attribute, SpanName
from onceward.wire import limits
from tests.support.rooms import ROOMS

pytestmark = pytest.mark.whole_tree

ROOT = Path(__file__).resolve().parents[2]
README, PROTOCOL, HELD, COMMANDS, SETTINGS, EXIT_CODES, EVENTS, LIMITS, METRICS, READING, RIGHTS, TRACES = (
    ROOT / name
    for name in (
        "README.md",
        "docs/protocol.md",
        "docs/faults.md",
        "docs/reference/commands.md",
        "docs/reference/settings.md",
        "docs/reference/exit-codes.md",
        "docs/reference/events.md",
        "docs/reference/limits.md",
        "docs/reference/metrics.md",
        "docs/reference/reading.md",
        "docs/reference/rights.md",
        "docs/reference/traces.md",
    )
)
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for folder in ("benchmarks", "docs", "examples", "tests") for page in (ROOT / folder).rglob("*.md")),
    ]
)

PRODUCTION = (*ROOMS, "onceward", "scripts")
CODE = (*PRODUCTION, "benchmarks", "compose", "deploy", "examples", "protos", "tests")
_TEXT = {".conf", ".html", ".ini", ".json", ".md", ".proto", ".py", ".pyi", ".sh", ".toml", ".txt", ".yaml", ".yml"}
_BARE = {".dockerignore", ".gitignore", "Dockerfile", "LICENSE", "Makefile", "run"}


def text_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix in _TEXT or path.name in _BARE):
                yield path


def committed_files() -> Iterator[Path]:
    """Yield the text files that belong to the repository."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and (path.suffix in _TEXT or path.name in _BARE))
    yield from text_files(*CODE, "docs", ".ci")


@cache
def read(path: Path) -> str:
    """Most tests read the whole project."""
    return path.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return the page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(page: Path, heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table below a heading, by each name in a row's first cell."""
    section = re.split(rf"^#+ {re.escape(heading)}$", read(page), flags=re.MULTILINE)[1]
    table = re.search(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    assert table is not None, heading
    found = {}
    for line in table[0].splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([^`]+)`", cells[0]) or [cells[0]]:
            found[name] = cells[1:]
    return found


def test_the_programs_of_the_readme_are_examples() -> None:
    blocks = re.findall(r"^<!-- (examples/\w+\.py) -->\n```python\n(.*?)^```$", read(README), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in blocks] == ["examples/first_job.py", "examples/dead_letters.py"]
    assert len(blocks) == read(README).count("```python\n")
    for name, block in blocks:
        example = read(ROOT / name)
        docstring = ast.parse(example).body[0]
        assert block.strip() == "\n".join(example.splitlines()[docstring.end_lineno :]).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file), target


def test_references_in_the_code_lead_to_sections_of_these_pages() -> None:
    found = set()
    for path in text_files(*CODE):
        for name, anchor in re.findall(r"(docs/[\w/-]+\.md)#([\w-]+)", read(path)):
            assert anchor in anchors(ROOT / name), f"{path}: {name}#{anchor}"
            found.add(name)
    assert found


def test_tests_and_modules_that_the_pages_name_exist() -> None:
    tests = {name for path in text_files("tests") for name in re.findall(r"def (test_\w+)", read(path))}
    for page in PAGES:
        text = prose(page)
        assert set(re.findall(r"`(test_\w+)`", text)) <= tests, page
        for name in re.findall(r"`([\w/]+/[\w/]+\.(?:py|sh))`", text):
            assert (ROOT / name).is_file(), f"{page}: {name}"


_ROWS = {
    "A": [*range(1, 13), 16, 17, 19],
    "B": [*range(1, 11), *range(12, 19)],
    "C": [*range(1, 9), *range(10, 17)],
    "D": [*range(1, 6), *range(8, 37)],
    "E": [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 17, 18, 21, 22, 23, 24],
    "F": [1, 2, 4, 5, 6, 7, *range(11, 18)],
    "K": [
        *(1, 2, 4, 5, 6, 7, 9, 11, 12, 13, 14, 17, 18, 19, 20, 21, 22, 23, 24, 27, 28, 29, 30, 31, 32, 33, 34, 35),
        *(37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 52, 53, 54, 55, 58, 59, 60, 63, 64, 65, 66, 67, 68, 69),
        *(70, 71, 72, 73, 74, 76, 79, 80, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96),
    ],
    "L": [*range(1, 19)],
    "N": [*range(1, 35)],
}
"""The faults that the page must answer for, held or not."""


def rows_of_faults() -> list[tuple[str, str]]:
    """Return (row, what holds it or what is missing), of all tables."""
    table = re.findall(r"^\| ([A-Z]\d+[a-z]?) \| .+ \| (.+) \|$", read(HELD), flags=re.MULTILINE)
    return [(row, held) for row, held in table]


def test_every_fault_is_listed_once_held_or_not() -> None:
    listed = [row for row, _ in rows_of_faults() if not row.startswith("M")]
    assert sorted(listed) == sorted(f"{letter}{number}" for letter, numbers in _ROWS.items() for number in numbers)


def test_every_fault_that_reading_found_is_listed_once_in_its_order() -> None:
    listed = [row for row, _ in rows_of_faults() if row.startswith("M")]
    assert listed == sorted(set(listed), key=lambda row: (int(re.sub(r"\D", "", row)), row))


def test_every_test_named_in_the_faults_page_exists() -> None:
    """Another test looks for the tests; this one looks for scenarios and invariants, and a name in every row."""
    invariants = {
        name: set(re.findall(r"^    ([A-Z]\w*) = ", read(ROOT / "tests" / file), flags=re.MULTILINE))
        for name, file in (("explorer", "support/oracle.py"), ("simulation", "simulation/checker.py"))
    }
    scenarios = {f"{file.parent.name}/{file.stem}" for file in (ROOT / "tests" / "scenarios").rglob("*.txt")}
    missing = rows(HELD, "Not held yet")
    for row, held in rows_of_faults():
        named = re.findall(r"`([^`]+)`", held)
        assert named or row in missing, row
        for kind, words in re.findall(r"(explorer|simulation) ((?:`\w+`(?: and )?)+)", held):
            names = re.findall(r"\w+", words.replace(" and ", " "))
            assert set(names) <= invariants[kind], row
            named = [name for name in named if name not in names]
        for name in named:
            assert name in scenarios or re.fullmatch(r"test_\w+|[\w/]+\.py", name), f"{row}: {name}"


def test_the_rows_that_scenarios_cite_are_on_the_page() -> None:
    listed = {row for row, _ in rows_of_faults()}
    for file in (ROOT / "tests" / "scenarios").rglob("*.txt"):
        cited = re.findall(r"\b([AKL]\d+)\b", read(file).splitlines()[0])
        assert set(cited) <= listed, file


def test_every_variable_of_the_environment_is_described() -> None:
    used = {name for path in text_files(*PRODUCTION) for name in re.findall(r"\bONCEWARD_[A-Z_]+\b", read(path))}
    assert used == rows(SETTINGS, "Environment variables").keys()


def test_every_kill_point_is_listed_and_has_its_place() -> None:
    assert set(rows_of_kill_points()) == set(KillPoint)
    texts = [read(path) for path in text_files(*PRODUCTION) if path.name != "killpoints.py"]
    placed = {name for text in texts for name in re.findall(r"\bKillPoint\.(\w+)", text)}
    assert placed >= set(KillPoint.__members__)


def rows_of_kill_points() -> list[str]:
    listed = [cell for cells in rows(PROTOCOL, "Kill points").values() for cell in cells]
    return re.findall(r"`([\w.]+)`", " ".join(listed))


def _parameters(function: Callable[..., Any], *left_out: str) -> dict[str, Any]:
    """Return name -> default of the parameters that a caller can set."""
    given = list(inspect.signature(function).parameters.values())[1:]
    return {p.name: p.default for p in given if p.name not in left_out}


def _fields(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind)}


@pytest.mark.parametrize(
    ("heading", "given"),
    [
        ("CheckpointSettings", _fields(CheckpointSettings)),
        ("Restart", _fields(Restart)),
        ("Every job", {"job": inspect.Parameter.empty, **NOT_GIVEN}),
        ("Pipeline", _parameters(Pipeline.__init__, "job", *NOT_GIVEN)),
        ("StreamSink", _parameters(StreamSink.__init__, "job", *NOT_GIVEN)),
        ("StreamingPipeline", _parameters(StreamingPipeline.__init__, "job", *NOT_GIVEN)),
        ("KafkaSource", _parameters(KafkaSource.__init__, "monotonic", "sleep")),
        ("KafkaSink", _parameters(KafkaSink.__init__)),
        ("DeltaSink", _parameters(DeltaSink.__init__)),
        ("IcebergSink", _parameters(IcebergSink.__init__)),
    ],
)
def test_every_setting_is_described_with_its_default(heading: str, given: dict[str, Any]) -> None:
    described = {name: cells[0].strip("`") for name, cells in rows(SETTINGS, heading).items()}
    assert described.keys() == given.keys()
    for name, default in given.items():
        shown = ("",) if default is inspect.Parameter.empty else (repr(default), str(default))
        assert described[name] in shown, name


def test_every_option_for_reading_is_described_with_the_reads_it_is_for() -> None:
    described = {name: cells[0].split(", ") for name, cells in rows(READING, "Options").items()}
    words = {Mode.STREAM: "stream", Mode.BATCH: "batch"}
    assert described == {name: [words[mode] for mode in Mode if mode in modes] for name, modes in OPTIONS.items()}


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    described = {what: cells[0] for what, cells in rows(LIMITS, "Limits").items()}
    request = next(what for what in described if what.startswith("one request to the coordinator"))
    held = next(what for what in described if what.startswith("requests that a coordinator holds"))
    peer = next(what for what in described if what.startswith("open calls of one peer"))
    for what, limit in {
        request: f"{limits.MAX_REQUEST_BYTES >> 20} MiB; {limits.MAX_CHECKPOINT_BYTES >> 20} MiB for all participants",
        held: f"{limits.MAX_HELD_BYTES >> 20} MiB",
        "participants of a job": f"{limits.MAX_PARTICIPANTS} ",
        "open calls of one coordinator, streams included": f"{limits.MAX_CONCURRENT_RPCS}",
        "open calls of one connection, streams included": f"{limits.MAX_STREAMS}",
        "text of a reason, a detail, evidence": f"{limits.MAX_TEXT} characters",
        "nesting of a document": f"{limits.MAX_DEPTH} levels",
        "rows in one listing": f"{limits.MAX_LISTED}",
        peer: f"{limits.MAX_CALLS_OF_PEER}",
        "open health checks, and open streams of them": f"{limits.MAX_HEALTH_CALLS} each",
        "JSON values in the documents of one request": f"{limits.MAX_VALUES}, of which {limits.MAX_CONTAINERS} ",
        "slots that one request names": f"{limits.MAX_SLOTS}",
        "jobs in the store of a coordinator": f"{limits.MAX_JOBS}",
        "savepoints of a job": f"{limits.MAX_SAVEPOINTS}",
        "num_retained": f"{limits.MAX_RETAINED}",
        "tokens of a rights file": f"{MAX_TOKENS}",
        "operator requests that wait or run, per job": f"{MAX_QUEUED}",
        "a savepoint's name": f"{limits.MAX_LABEL} characters",
        "broken links that a driver reports": f"{limits.MAX_TROUBLES} with each renewal",
    }.items():
        assert described[what].startswith(limit), what


def test_every_key_of_a_rights_file_is_described() -> None:
    assert list(rows(RIGHTS, "Keys")) == list(KEYS)
    assert set(rows(RIGHTS, "What each right permits")) == {"none", *Right}


def test_the_rights_of_calls_are_those_of_the_code() -> None:
    described = {call: re.findall(r"`(\w+)`", cells[0]) for call, cells in rows(RIGHTS, "Calls").items()}
    assert {call: set(named) for call, named in described.items()} == {
        call: set(needs.rights) for call, needs in NEEDS.items()
    }


def test_the_rights_file_of_the_page_can_be_used() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", read(ROOT / "docs/how-to/rights.md"), flags=re.MULTILINE | re.DOTALL)
    assert {key for table in tomllib.loads(text)["peers"].values() for key in table} == set(KEYS)
    rights = parse_rights(text)
    peer = rights.peer(Credentials(names=frozenset({"orders.example.org"})))
    assert peer is not None
    assert peer.may(Right.DRIVE, "orders-eur")
    assert not peer.may(Right.DRIVE, "payments-eur")


def test_exit_codes_are_all_there() -> None:
    assert [int(code) for code in rows(EXIT_CODES, "Exit codes")] == [int(code) for code in ExitCode]


@cache
def reported_events() -> dict[str, set[str]]:
    """Return event -> the fields that the code names when it reports the event."""
    found: dict[str, set[str]] = {}
    for path in text_files("driver"):
        for node in ast.walk(ast.parse(read(path))) if path.suffix == ".py" else ():
            match node:
                case ast.Call(func=ast.Attribute(value=journal, attr="log"), args=[ast.Constant(value=str(event))]) if (
                    re.search(r"\b_?journal$", ast.unparse(journal))
                ):
                    fields_named = {keyword.arg for keyword in node.keywords if keyword.arg} - {"checkpoint"}
                    found.setdefault(event, set()).update(fields_named)
    return found


def test_every_event_is_described_with_its_fields() -> None:
    described, reported = rows(EVENTS, "Events"), reported_events()
    assert described.keys() == reported.keys()
    for event, named in reported.items():
        assert named <= set(re.findall(r"`([\w-]+)`", described[event][1])), event


def test_every_step_of_a_checkpoint_is_described_in_its_order() -> None:
    described = re.findall(r"^\| `(\w+)` \|", read(EVENTS), flags=re.MULTILINE)
    steps = [step for step in STEPS if step != "read+transform"]  # in the row of `transform`
    assert [name for name in described if name not in reported_events()] == steps


def test_every_phase_of_a_checkpoint_is_described_in_its_order() -> None:
    assert list(rows(COMMANDS, "Phases")) == list(Phase)


def test_the_commands_of_the_pages_exist() -> None:
    commands = {command.name or str(getattr(command.callback, "__name__", "")) for command in app.registered_commands}
    commands |= {f"dev {command.name}" for command in dev.registered_commands}
    assert {name.removeprefix("onceward ").split(" JOB")[0] for name in rows(COMMANDS, "Commands")} == commands
    targets = re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), flags=re.MULTILINE)
    for page in PAGES:
        assert set(re.findall(r"`make (\w+)", read(page))) <= set(targets), page


def options_of(line: str) -> set[str]:
    """Return the options of a command such as ``onceward stop JOB``, without those that most commands have."""
    *group, name = line.removeprefix("onceward ").split(" JOB")[0].split()
    command = get_group(dev if group else app).commands[name]
    options = {option for given in command.params for option in (*given.opts, *given.secondary_opts)}
    return {option for option in options if option.startswith("--")} - {"--coordinator", "--state-dir", "--json"}


def test_every_option_of_a_command_is_described_in_its_row_or_where_the_row_links() -> None:
    for line, cells in rows(COMMANDS, "Commands").items():
        linked = [COMMANDS.parent / page for page in re.findall(r"\]\(([^)#]+)", cells[0])]
        described = re.findall(r"--[a-z-]+", " ".join([cells[0], *map(read, linked)]))
        assert line == "onceward serve" or options_of(line) <= set(described), line


def test_the_options_of_serve_have_their_table() -> None:
    described = {name.split()[0] for name in rows(COMMANDS, "Options of `onceward serve`")}
    assert described == options_of("onceward serve")


# Written in pieces, so that this file does not match itself.
_FORBIDDEN = {
    "a machine's path": rf"(?<![\w.}}])/(?:{'work'}|{'root'}|{'home'}|{'Users'})/\w",
    "a package registry": "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("repo1", "maven", "org"),
            ("repo", "maven", "apache"),
            ("proxy", "golang", "org"),
            ("registry", "npmjs", "org"),
        )
    ),
    "a page that is not here": rf"\b(?:{'DESIGN'}|{'FACTS'}|{'FAULTS'}|{'STYLE'})(?:\.md| [0-9A-Z]+[0-9.]*)\b",
}


@pytest.mark.parametrize("what", _FORBIDDEN)
def test_no_file_names_what_is_only_here(what: str) -> None:
    pattern = re.compile(_FORBIDDEN[what])
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}" for path in committed_files() for match in pattern.finditer(read(path))
    ]
    assert found == []


@pytest.mark.parametrize(("heading", "described"), [("Coordinator", COORDINATOR_METRICS), ("Driver", DRIVER_METRICS)])
def test_every_metric_is_described_as_the_code_describes_it(heading: str, described: tuple[Described, ...]) -> None:
    shown = {name: (kind, labels, text) for name, (kind, labels, text) in rows(METRICS, heading).items()}
    assert shown == {
        metric.name: (metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.text)
        for metric in described
    }


def test_the_values_of_labels_and_the_bound_of_jobs_are_those_of_the_code() -> None:
    described = rows(METRICS, "Metrics")
    assert re.findall(r"`(\w+)`", described["status"][0]) == [status.value for status in JobStatus]
    reasons = re.search(r"^\| `reason` of an abort \| (.*) \|$", read(METRICS), flags=re.MULTILINE)
    assert reasons is not None
    assert re.findall(r"`(\w+)`", reasons[1]) == [reason.name.lower() for reason in AbortReason]
    assert f"At most {MAX_JOBS} jobs" in described["job_name"][0]
    assert OTHERS in described["job_name"][0]


def test_every_span_and_every_attribute_is_described() -> None:
    assert set(rows(TRACES, "Spans")) == set(SpanName)
    assert set(rows(TRACES, "Attributes")) == set(Attribute)
    assert f"The {MAX_SLOTS} slots that took longest" in read(TRACES)


def test_every_alert_has_a_remedy() -> None:
    alerts = re.findall(r"- alert: (\w+)", read(ROOT / "deploy" / "prometheus" / "alerts.yml"))
    assert sorted(rows(ROOT / "docs" / "how-to" / "watch.md", "Alerts and dashboard")) == sorted(alerts)
