"""What a program may say of its outputs, and in which passes they are made."""

from typing import Any, cast

import pytest

from onceward import KafkaSink, Output
from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import SinkSession
from onceward.driver.output import outputs_of, require_one_pass, require_whole
from onceward.driver.spark.passes import Pass, Share, passes_of
from onceward.protocol.values import ParticipantName
from onceward.sinks.kafka.driver import columns

SINK = KafkaSink("localhost:9092", topic="out")


def doubled(df: Any) -> Any:
    return df.union(df)


def test_the_key_names_an_output_and_the_programs_sink_keeps_its_name() -> None:
    outputs = outputs_of(None, {"eur": Output(SINK), "all": Output(SINK, where="true")})
    assert [(name, output.sink.participant.name) for name, output in outputs.items()] == [
        ("eur", "eur"),
        ("all", "all"),
    ]
    assert outputs[ParticipantName("eur")].sink.participant.on_lost is SINK.participant.on_lost
    assert SINK.participant.name == "sink"


def test_one_sink_is_one_output_under_its_own_name() -> None:
    assert outputs_of(SINK, None) == {"sink": Output(SINK)}


@pytest.mark.parametrize(("sink", "outputs"), [(None, None), (SINK, {"a": Output(SINK)})])
def test_either_a_sink_or_outputs_are_given(sink: KafkaSink | None, outputs: Any) -> None:
    with pytest.raises(ConfigurationError, match="give one of them"):
        outputs_of(sink, outputs)


@pytest.mark.parametrize("outputs", [{}, [Output(SINK)]])
def test_outputs_are_a_mapping_with_at_least_one(outputs: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs a mapping of names"):
        outputs_of(None, outputs)


def test_everything_that_is_wrong_is_in_one_message() -> None:
    wrong: Any = {
        "Upper": Output(SINK),
        "bare": SINK,
        "both": Output(SINK, where="true", transform=doubled),
        "text": Output(SINK, select=cast(Any, "value")),
        "none": Output(SINK, select=[]),
        "uncallable": Output(SINK, transform=cast(Any, "doubled")),
    }
    with pytest.raises(ConfigurationError) as refused:
        outputs_of(None, wrong)
    named = [line.split("'")[1] for line in str(refused.value).splitlines()[1:]]
    assert named == list(wrong)


def test_expressions_are_refused_beside_a_function_on_batches_and_branches_in_a_query() -> None:
    outputs = outputs_of(
        None, {"a": Output(SINK), "b": Output(SINK, where="true"), "c": Output(SINK, transform=doubled)}
    )
    with pytest.raises(ConfigurationError, match="outputs: b, c: "):
        require_whole(outputs)
    with pytest.raises(ConfigurationError, match="outputs: c: "):
        require_one_pass(outputs)


class Session:
    """A session of a Kafka sink that is not connected."""

    def __init__(self, name: str) -> None:
        self.participant = SINK.named(ParticipantName(name)).participant

    def choose(self, given: Any) -> Any:
        return columns.choose(given, routed=False)


def sessions(*names: str) -> list[SinkSession]:
    return [cast(SinkSession, Session(name)) for name in names]


def test_all_outputs_but_branches_share_one_pass() -> None:
    outputs = outputs_of(
        None,
        {"a": Output(SINK), "b": Output(SINK, transform=doubled), "c": Output(SINK, where="true")},
    )
    shared, branch = passes_of(outputs, sessions("a", "b", "c"), None)
    assert [share.name for share in shared.shares] == ["a", "c"]
    assert [share.name for share in branch.shares] == ["b"]
    frame: Any = {"record"}
    assert shared.transform is None
    assert branch.transform is not None
    assert branch.transform(frame) == doubled(frame)


def test_a_branch_transforms_what_the_jobs_transform_makes() -> None:
    own: Any = lambda made: ["branch", *made]  # noqa: E731
    common: Any = lambda read: ["common", *read]  # noqa: E731
    (branch,) = passes_of(outputs_of(None, {"b": Output(SINK, transform=own)}), sessions("b"), common)
    composed: Any = branch.transform
    assert composed(["source"]) == ["branch", "common", "source"]


SCHEMA = "key binary, value binary, offset bigint"


def test_a_pass_that_only_chooses_columns_of_the_source_needs_no_spark() -> None:
    first, second = sessions("a", "b")
    chosen = Pass([Share(first), Share(second, select=["value"])]).choices(SCHEMA, ["key", "value"])
    assert chosen == {"a": {"key": "key", "value": "value"}, "b": {"value": "value"}}


@pytest.mark.parametrize(
    ("share", "schema"),
    [
        ({"where": "offset > 5"}, SCHEMA),
        ({"select": ["cast(offset as string) as value"]}, SCHEMA),
        ({}, "value decimal(10,2)"),
    ],
)
def test_whatever_else_a_pass_does_spark_plans_it(share: Any, schema: str) -> None:
    first, second = sessions("a", "b")
    assert Pass([Share(first), Share(second, **share)]).choices(schema, ["value"]) is None


def test_columns_that_a_sink_cannot_take_are_refused_without_spark() -> None:
    (only,) = sessions("a")
    with pytest.raises(ConfigurationError, match="value: the column is missing"):
        Pass([Share(only, select=["key"])]).choices(SCHEMA, ["key", "value"])
