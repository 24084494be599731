"""The recorder beside real runs: what it writes passes where all was right, and says what it lacks where it lacks."""

import signal
from pathlib import Path

import pytest

from coordinator.killpoints import KillPoint
from coordinator.ops.verify import Grade, judge, read_history
from tests.checker.recorder import Recorder
from tests.integration.processes import World, world
from tests.integration.test_kill_points import QUICK, fill, free_address
from tests.integration.tools import Topics

pytestmark = pytest.mark.timeout(300)


def spec(topics: Topics, job: str, source: str, sink: str, address: str) -> dict[str, object]:
    return {
        "job": job,
        "servers": topics.servers,
        "source": source,
        "sink": sink,
        "coordinator": address,
        "source_options": {"start": "earliest", "end": "latest", "max_offsets_per_checkpoint": 300},
        "settings": {**QUICK, "num_retained": 1000},
        "sparkless": True,
    }


def end(here: World, coordinator: object) -> None:
    here.finish()
    coordinator.send(signal.SIGTERM)  # type: ignore[attr-defined]
    coordinator.wait()  # type: ignore[attr-defined]


def test_a_run_with_kills_is_recorded_and_passes(topics: Topics, job: str, tmp_path: Path) -> None:
    source, sink, address = topics.create("in", 3), topics.create("out", 2), free_address()
    fill(topics, source, 700)
    with (
        world(tmp_path, **spec(topics, job, source, sink, address)) as here,
        Recorder(
            topics.servers, job=job, inputs=[source], outputs=[sink], file=tmp_path / "history", coordinator=address
        ) as recorder,
    ):
        coordinator = here.coordinator(address)
        for point in (KillPoint.DRIVER_AFTER_DECISION, KillPoint.DRIVER_AFTER_VOTES):
            here.wait_for_kill(point, 2, here.driver(kill_at=[f"{point}:2"]))
        end(here, coordinator)
        history = recorder.finish(store=f"sqlite:///{tmp_path / 'coordinator.db'}", whole_input=True)
    verdict = judge(history)
    assert verdict.grade is Grade.PASS, verdict.text()
    assert len(history.fed) == len(history.seen) == len(history.rest) == 2100
    assert len({one.checkpoint for one in history.told if one.state == "settled"}) >= 8
    assert judge(read_history(tmp_path / "history")).grade is Grade.PASS
