"""The outputs that the page of a job lists."""

from typing import Any

from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, Outcome, Participant, ParticipantName, Role
from onceward.watch.web.outputs import outputs_of
from onceward.wire.rows import JobDescription
from tests.unit.web.rows import job

EUR, LAKE = ParticipantName("eur"), ParticipantName("lake")
SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
BOTH = (
    Participant(name=EUR, role=Role.SINK, kind="kafka", place="Kafka topic orders-eur"),
    Participant(name=LAKE, role=Role.SINK, kind="iceberg"),
)


def shown(*, summary: dict[str, Any] | None = None, **given: Any) -> list[tuple[str, str, str]]:
    usual: dict[str, Any] = {
        "summary": job("orders", **{"last_completed": CheckpointId(7), **(summary or {})}),
        "participants": (SOURCE, *BOTH),
        "settings": CheckpointSettings(),
        "connected": True,
        "unresolved": {},
        "driven": True,
    }
    return [(row.name, row.state, row.detail) for row in outputs_of(JobDescription(**usual | given))]


def test_each_output_says_where_it_writes_or_what_kind_it_is() -> None:
    described = JobDescription(
        summary=job("orders"),
        participants=(SOURCE, *BOTH),
        settings=CheckpointSettings(),
        connected=True,
        unresolved={},
        driven=True,
    )
    assert [row.place for row in outputs_of(described)] == ["Kafka topic orders-eur", "iceberg sink"]


def test_one_output_is_settled_while_another_is_not() -> None:
    assert shown(unsettled={LAKE: 2}) == [
        ("eur", "settled", "up to checkpoint 7"),
        ("lake", "completed", "checkpoint 7: 2 not proved committed yet"),
    ]


def test_a_doubt_is_shown_before_losses_and_both_before_what_is_only_late() -> None:
    unresolved = {LAKE: {0: Outcome.LOST, 3: Outcome.IN_DOUBT, 4: Outcome.LOST}}
    eur, lake = shown(unresolved=unresolved, unsettled={LAKE: 5})
    assert eur == ("eur", "settled", "up to checkpoint 7")
    assert (lake[1], sorted(lake[2].removeprefix("checkpoint 7: ").split(", "))) == (
        "in_doubt",
        ["1 in doubt", "2 lost"],
    )
    assert shown(unresolved={EUR: {0: Outcome.LOST}})[0] == ("eur", "lost", "checkpoint 7: 1 lost")


def test_nothing_is_claimed_of_what_cannot_be_read_or_has_not_begun() -> None:
    assert {row[1] for row in shown(summary={"unreadable": "damaged"})} == {"unknown"}
    assert {row[1:] for row in shown(summary={"last_completed": CheckpointId(0)})} == {("", "nothing yet")}


def test_an_output_that_is_gone_is_listed_last_until_it_is_closed() -> None:
    gone = Participant(name=ParticipantName("bi"), role=Role.SINK, kind="postgres")
    name, state, detail = shown(summary={"gone_outputs": (gone,)})[-1]
    assert (name, state) == ("bi", "gone")
    assert "onceward close orders bi --reason" in detail
