"""The arguments that every kind of job takes."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward.common.errors import ConfigurationError
from onceward.driver.opening import Job
from onceward.driver.options import NOT_GIVEN, CheckedOptions, JobOptions
from onceward.driver.pipeline import Pipeline
from onceward.driver.restarts import Restart
from onceward.driver.streaming.pipeline import StreamingPipeline
from onceward.driver.streaming.sink import StreamSink
from onceward.sinks.kafka.driver.sink import KafkaSink
from onceward.sources.kafka.driver.source import KafkaSource

SINK = KafkaSink("localhost:1", topic="totals")
KINDS: dict[str, Callable[..., Job]] = {
    "Pipeline": lambda **given: Pipeline(source=KafkaSource("localhost:1", topics=["orders"]), sink=SINK, **given),
    "StreamSink": lambda **given: StreamSink(object(), sink=SINK, **given),  # type: ignore[arg-type]
    "StreamingPipeline": lambda **given: StreamingPipeline(
        query=lambda spark: spark.readStream.load(), sink=SINK, checkpoint_location="/data/totals", **given
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_that_there_is_not_is_named_with_the_kind_of_job(kind: str) -> None:
    with pytest.raises(TypeError, match=rf"^{kind}\(\) got an unexpected keyword argument 'coordinater'$"):
        KINDS[kind](job="totals", coordinater="localhost:7878")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("job", "No Job", "job: "),
        ("coordinator", "localhost", "is no address"),
        ("token", "secret", "token: "),
        ("metrics", "anywhere", "is no address"),
        ("web", "0.0.0.0:8080", "web: "),
        ("accept_risks", "replication", "accept_risks: "),
    ],
)
def test_a_value_that_no_job_can_use_is_refused_where_it_is_written(
    kind: str, name: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        KINDS[kind](**{"job": "totals", name: value})


@pytest.mark.parametrize("kind", [Pipeline, StreamSink, StreamingPipeline], ids=lambda kind: kind.__name__)
def test_help_names_and_explains_each_option(kind: type[Job]) -> None:
    shown, said = inspect.signature(kind), inspect.getdoc(kind.__init__) or ""
    for name, default in NOT_GIVEN.items():
        assert shown.parameters[name].default == default
        assert said.count(f"\n:param {name}:") == 1
    assert not any(one.kind is one.VAR_KEYWORD for one in shown.parameters.values())
    assert list(shown.parameters)[: len(shown.parameters) - len(NOT_GIVEN)] == _own(kind)
    assert said.index(":param job:") < said.index(":param coordinator:") < said.index("\n:raises ")


def _own(kind: type[Job]) -> list[str]:
    """The arguments that the class itself names."""
    code: Any = kind.__init__.__code__
    return list(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def test_each_option_has_a_default() -> None:
    assert NOT_GIVEN.keys() == JobOptions.__annotations__.keys()


def test_options_say_how_the_coordinator_is_reached_and_how_failures_are_retried(tmp_path: Path) -> None:
    embedded = CheckedOptions.of("Pipeline", {"state_dir": tmp_path})
    assert (embedded.access.embedded, embedded.access.state_dir) == (True, tmp_path)
    assert (embedded.restart, embedded.settings, embedded.accepted) == (Restart(), None, frozenset())
    restart = Restart(attempts=3)
    remote = CheckedOptions.of(
        "Pipeline", {"coordinator": "localhost:7878", "token": "env:TOKEN", "restart": restart, "traces": True}
    )
    assert (remote.access.address, remote.access.token) == ("localhost:7878", "env:TOKEN")
    assert (remote.restart, remote.traces) == (restart, True)
