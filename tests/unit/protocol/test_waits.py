"""What ``onceward jobs`` shows a job to wait for."""

import pytest

from onceward.protocol.waits import unsettled_slots, waits
from tests.support.events import SINK
from tests.unit.protocol.lives import BEGUN, UNSETTLED, after

THREE_SLOTS = (
    *("open d1 replaying", "watch", "ack 1 source on 0 at 1", "ack 1 sink on 0", "request r checkpoint"),
    *("ack 2 source on 1 at 2", "ack 2 sink on 1 slots 0,1,2"),
)
OPENED = 100.0
"""The player's clock at the first command."""


@pytest.mark.parametrize(
    ("commands", "waiting", "unsettled"),
    [
        (BEGUN, [], 0),
        (["open d1"], [("its driver to take instructions", OPENED)], 0),
        (["open d1", "watch"], [("the driver's acknowledgement of checkpoint 1 for source and sink", OPENED)], 0),
        (
            ["open d1", "watch", "ack 1 source on 0 at 1"],
            [("the driver's acknowledgement of checkpoint 1 for sink", OPENED)],
            0,
        ),
        (
            ["open d1", "watch", "after 3", "lost"],
            [
                ("the instruction stream of its driver", OPENED + 3),
                ("the driver's acknowledgement of checkpoint 1 for source and sink", OPENED),
            ],
            0,
        ),
        (THREE_SLOTS, [("settling checkpoint 2: 3 commits are not proved", None)], 3),
        (
            [*THREE_SLOTS, "settle 2 sink 0=committed 1=lost"],
            [
                ("1 lost slots of checkpoint 2 to be written again", None),
                ("settling checkpoint 2: 1 commits are not proved", None),
            ],
            2,
        ),
        (
            [*THREE_SLOTS, "settle 2 sink 0=committed 1=lost 2=committed"],
            [("1 lost slots of checkpoint 2 to be written again", None)],
            1,
        ),
        (
            [*UNSETTLED, "after 2", "settle 2 sink 0=lost"],
            [
                ("a person to decide", None),
                ("its driver to end its generation", OPENED + 2),
                ("settling checkpoint 2: 1 commits are not proved", None),
            ],
            1,
        ),
        (
            [*UNSETTLED, "request s checkpoint", "ack 3 source on 2 at 3", "after 3", "ack 3 sink on 2", "after 8"],
            [
                ("settling checkpoint 2: 1 commits are not proved", None),
                ("checkpoint 2 to be settled before checkpoint 3 is completed", OPENED + 3),
            ],
            1,
        ),
        ([*UNSETTLED, "stop"], [("settling checkpoint 2: 1 commits are not proved", None)], 1),
        *(
            (
                [*UNSETTLED, asked, "close failed"],
                [
                    (f"the coordinator or the next driver to settle checkpoint 2, after which it is {end}", None),
                    ("settling checkpoint 2: 1 commits are not proved", None),
                ],
                1,
            )
            for asked, end in (("stop", "finished"), ("cancel", "cancelled"))
        ),
    ],
)
def test_a_job_waits_for(commands: list[str], waiting: list[tuple[str, float | None]], unsettled: int) -> None:
    state = after(*commands).state
    assert [(wait.what, wait.since) for wait in waits(state)] == waiting
    assert unsettled_slots(state) == ({SINK.name: unsettled} if unsettled else {})
