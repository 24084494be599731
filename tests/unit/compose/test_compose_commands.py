"""The real programs accept every command line of compose/ and of its page, and read every variable."""

import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

from onceward.coordinator.service.listen import parse_listen
from onceward.coordinator.service.rights import Credentials, Right, parse_rights
from onceward.dev.demo import expected, feeder, job
from onceward.dev.demo.flights import messages
from onceward.dev.demo.topics import FLIGHTS, JOB, OUTPUTS
from tests.support.commands import parsed
from tests.support.compose import FILES, ROOT, Service, services, topology
from tests.support.rooms import ROOMS

EACH = pytest.mark.parametrize("service", services(), ids=str)
DEPLOY = ROOT / "docs" / "how-to" / "deploy.md"

_SPARK = Path(pyspark.__file__).parent
_PROXY_OPTIONS = {"host", "config"}
_KAFKA_TOOLS = {"kafka-broker-api-versions.sh", "kafka-topics.sh"}


def onceward_lines(service: Service) -> list[list[str]]:
    return [line[1:] for line in (service.command, service.health) if line and line[0] == "onceward"]


def test_a_wrong_option_and_a_wrong_command_are_noticed() -> None:
    parsed(["serve", "--listen=0.0.0.0:7878"])
    for wrong in (["serve", "--listens=1"], ["served"], ["verify", "--job=x"], ["dev", "kafkas"], ["health", "x"]):
        with pytest.raises(ValueError, match=r"option|command|Missing|Got"):
            parsed(wrong)


@EACH
def test_programs_exist_and_accept_their_arguments(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    command = service.command
    for line in (command, service.health):
        match line:
            case []:
                continue
            case ["onceward", *arguments]:
                parsed(arguments)
            case ["python", "-m", module, *arguments]:
                assert _taken(module, arguments, monkeypatch)
            case ["python", "-c", program]:
                compile(program, "-c", "exec")
            case ["spark-class", name, *arguments]:
                _spark_class(name, arguments)
            case [*arguments] if service.image.startswith("onceward/toxiproxy:") and line is command:
                assert {word.partition("=")[0].lstrip("-") for word in arguments} == _PROXY_OPTIONS
            case ["/toxiproxy-cli", "list"]:
                continue
            case ["pg_isready", *arguments]:
                assert {word.partition("=")[0] for word in arguments} == {"--host", "--username"}
            case ["sh", script, *places]:
                # tests/integration/test_compose_leaders.py runs the first, the other one is a few words
                assert script in topology(service.topology).config_files(service) or (
                    script == "-ec" and len(places) == 1
                )
            case _:
                assert service.image.startswith("apache/kafka:")
                tools = set(re.findall(r"/opt/kafka/bin/([\w.-]+)", " ".join(line)))
                assert tools
                assert tools <= _KAFKA_TOOLS


def _taken(module: str, arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments as the demo's own modules parse them."""
    got: dict[str, Any] = {}

    class Run:
        def run(self) -> None:
            got["ran"] = True

    def pipeline(brokers: str, coordinator: str, *, table: str | None, per_checkpoint: int | None) -> Run:
        assert table is None, "containers share no directory"
        got.update(brokers=brokers, coordinator=coordinator, per_checkpoint=per_checkpoint)
        return Run()

    def feed(brokers: str, topic: str, *, seconds: float, limit: int | None) -> int:
        got.update(brokers=brokers, topic=topic, seconds=seconds, limit=limit)
        return 0

    monkeypatch.setattr(sys, "argv", [module, *arguments])
    match module:
        case "onceward.dev.demo.job":
            monkeypatch.setattr(job, "pipeline", pipeline)
            job.main()
        case "onceward.dev.demo.feeder":
            monkeypatch.setattr(feeder, "feed", feed)
            assert feeder.main() == 0
            assert got["topic"] == FLIGHTS
        case _:
            pytest.fail(f"{module} is not known here")
    return got


def _spark_class(name: str, arguments: Sequence[str]) -> None:
    """Check that the class is in Spark's jar and its parser knows the options: each is one word, its value the next.

    ``--host=NAME`` is not an option to it.
    """
    jar = next((_SPARK / "jars").glob("spark-core_*.jar"))
    with zipfile.ZipFile(jar) as classes:
        parser = classes.read(f"{name.replace('.', '/')}Arguments.class")
    words = list(arguments)
    while words and words[0].startswith("-"):
        option, value = words.pop(0), words.pop(0)
        assert re.fullmatch(r"--[a-z-]+", option), option
        assert option.encode() in parser, option
        assert not value.startswith("-"), value
    assert words == (["spark://spark-master:7077"] if name.endswith("Worker") else [])


@pytest.mark.parametrize("service", [one for one in services() if "serve" in one.command], ids=str)
def test_a_coordinator_serves_the_others_and_answers_its_own_check(service: Service) -> None:
    _, given = parsed(service.command[1:])
    several = service.topology == "leaders"
    listen = parse_listen(given["listen"], anywhere=given["insecure_listen_anywhere"] or several)
    assert not listen.loopback
    assert str(given["systems"]) in topology(service.topology).config_files(service)
    (check,) = [line for line in onceward_lines(service) if line[0] == "health"]
    command, asked = parsed(check)
    assert command == "health"
    assert asked == {
        "coordinator": f"127.0.0.1:{listen.port}" if several else None,
        # one that stands by is ready
        "ready": several,
        "live": False,
    }
    if not several:
        assert service.environment["ONCEWARD_COORDINATOR"] == f"127.0.0.1:{listen.port}"


def test_coordinators_that_share_a_store_differ_only_by_their_names() -> None:
    known = topology("leaders").services
    serving = [service for service in known.values() if "serve" in service.command]
    commands = []
    for service in serving:
        command = service.command
        command.remove(f"--advertise={service.name}:7878")
        commands.append(command)
        assert service.environment["ONCEWARD_COORDINATOR"] == ",".join(f"{one.name}:7878" for one in serving)
    assert commands[0] == commands[1]
    first, second = ({**service.entry, "command": [], "configs": []} for service in serving)
    assert first.pop("volumes")[0] == "coordinator:/var/lib/onceward", "the volume of the quickstart's store"
    assert second.pop("volumes") == serving[0].entry["volumes"][1:]
    assert first == second
    _, given = parsed(serving[0].command[1:])
    assert {given[name] is None for name in ("tls_cert", "tls_key", "client_ca", "rights", "store_password")} == {False}
    assert not given["insecure_listen_anywhere"]


def test_every_client_of_coordinators_with_tls_has_a_certificate_and_knows_both() -> None:
    known = topology("leaders").services
    addresses = known["coordinator"].environment["ONCEWARD_COORDINATOR"]
    for name in ("doctor", "job", "check"):
        assert known[name].environment["ONCEWARD_COORDINATOR"] == addresses
        for variable in ("ONCEWARD_TLS_CA", "ONCEWARD_TLS_CERT", "ONCEWARD_TLS_KEY"):
            assert known[name].environment[variable].startswith(known[name].mounts["job-secrets"][0])
    assert known["job"].option("coordinator") == [addresses]
    rights = parse_rights((ROOT / "compose" / "leaders" / "rights.toml").read_text())
    peer = rights.peer(Credentials(names=frozenset({"flights"})))
    assert peer is not None
    assert peer.may(Right.DRIVE, JOB)


@pytest.mark.parametrize("name", FILES)
def test_the_check_is_of_the_job_that_runs(name: str) -> None:
    _, given = parsed(topology(name).services["check"].command[1:])
    assert given["job"] == JOB
    assert given["inputs"] == [FLIGHTS]
    assert given["outputs"] == list(OUTPUTS)
    module, _, function = given["expected_by"].partition(":")
    assert getattr(sys.modules[module], function) is expected.outputs


def test_the_check_and_the_demo_expect_the_same() -> None:
    """Rows 137, 411, 733 and 999 are damaged; some flights are cancelled."""
    for message in messages(1000):
        single = expected.output_of(message)
        several = expected.outputs(FLIGHTS, message.key, message.value)
        assert several == ([] if single is None else [(single[0], single[1].key, single[1].value)])


@EACH
def test_every_variable_is_read_by_the_program_that_gets_it(service: Service) -> None:
    for name in service.environment:
        if name.startswith("KAFKA_") or name == "CLUSTER_ID":
            assert service.image.startswith("apache/kafka:"), name
        elif name.startswith("ONCEWARD_"):
            assert service.image.startswith(("onceward/coordinator:", "onceward/job:")), name
            assert any(name in path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py")), name
        elif name.startswith("POSTGRES_"):
            assert service.image.startswith("postgres:"), name
            assert name in {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD_FILE"}
        elif name == "LOG_LEVEL":
            assert service.image.startswith("onceward/toxiproxy:")
        else:
            assert re.match(r"SPARK_|PYSPARK_", name)
            assert service.image.startswith("onceward/job:"), name
            assert re.search(rf"\b{name}\b", _sparks_scripts()), name


def _sparks_scripts() -> str:
    """Return the text of the programs where Spark reads its variables: its shell scripts and Python core."""
    texts = [path.read_text() for path in (_SPARK / "bin").iterdir() if path.suffix in ("", ".sh")]
    texts += [path.read_text() for path in (_SPARK / "core").glob("*.py")]
    return "\n".join(texts)


def deploy_lines() -> list[str]:
    """Return the commands of the page's blocks, with continued lines joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", DEPLOY.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\\\n\s*", " ", "".join(blocks))
    return [line.partition("  #")[0].strip() for line in text.splitlines() if line.strip()]


def usage_lines() -> list[str]:
    """Return the commands in the comments at the top of the files."""
    found = []
    for file in sorted({file for files in FILES.values() for file in files}):
        text = re.sub(r"\\\n#\s*", " ", (ROOT / "compose" / file).read_text(encoding="utf-8"))
        found += re.findall(r"^# +(docker .+)$", text, flags=re.MULTILINE)
    return found


_VERBS = {
    *("up", "down", "run", "exec", "logs", "stop", "start", "restart", "kill", "ps", "cp", "build", "pause", "unpause"),
}


@pytest.mark.parametrize("line", [*deploy_lines(), *usage_lines()])
def test_commands_named_in_messages_exist(line: str) -> None:
    words = shlex.split(line)
    if "onceward" in words and words[0] != "docker":
        parsed(words[words.index("onceward") + 1 :])
    if words[:2] != ["docker", "compose"]:
        return
    rest = words[2:]
    files = []
    while rest[0] in ("-f", "--profile"):
        if rest[0] == "-f":
            files.append(Path(rest[1]).name)
            assert (ROOT / rest[1]).is_file()
        rest = rest[2:]
    (name,) = [name for name, given in FILES.items() if given == tuple(files)]
    verb, *arguments = rest
    assert verb in _VERBS
    known = topology(name).services
    if verb == "cp":
        place = next(word for word in arguments if ":" in word)
        assert place.partition(":")[0] in known
        return
    named = [word for word in arguments if not word.startswith("-")]
    if named:
        assert named[0] in known, named[0]
    if verb in ("exec", "run") and "onceward" in named:
        parsed(arguments[arguments.index("onceward") + 1 :])
    if verb == "exec" and named[1:2] == ["/toxiproxy-cli"]:
        proxies = {name for name, _, _, _ in topology(name).proxies()}
        assert named[-1] in proxies or named[2:] == ["list"]


def test_compose_itself_reads_the_files_where_it_is_installed(tmp_path: Path) -> None:
    """Where Docker Compose is not installed, the other tests must suffice."""
    for files in FILES.values():
        named = [word for file in files for word in ("-f", str(ROOT / "compose" / file))]
        try:
            version = subprocess.run(["docker", "compose", "version"], capture_output=True, cwd=tmp_path, check=False)
        except FileNotFoundError:
            pytest.skip("docker is not installed")
        if version.returncode != 0:
            pytest.skip("docker has no compose")
        read = subprocess.run(
            ["docker", "compose", *named, "--profile", "check", "config", "--quiet"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert read.returncode == 0, read.stderr
