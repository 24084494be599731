"""Runs parts of the suite side by side, each in a process of its own."""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from multiprocessing.queues import SimpleQueue

from tests.crash.suite import PARTS, SHARED, Plan
from tests.support.schedules import Schedule

__all__ = ["run"]

_AT_A_TIME = 2
"""Parts. One leaves much of two cores idle: its processes wait for each other, and for the time of a kill."""
_LONG = ("streams", "combinations", "leaders", "spark", "staying")
"""Parts that begin first, so that none of them runs alone at the end."""


def run(parts: Sequence[str], plan: Plan) -> Iterator[Schedule]:
    """Yield the schedules of all parts as they end. Raises the first error of a part after all parts have ended."""
    context = get_context("spawn")
    ended: SimpleQueue[Schedule] = context.SimpleQueue()
    with ProcessPoolExecutor(_AT_A_TIME, context, _begin, (ended,)) as pool:
        running = [
            pool.submit(_run_part, name, share)
            for name in sorted(parts, key=_when)
            for share in plan.divided(SHARED.get(name, 1))
        ]
        over = False
        while not over:
            over = not wait(running, timeout=0.5).not_done  # looked at first: what ends later is seen next time
            while not ended.empty():
                yield ended.get()
        for part in running:
            part.result()


def _when(part: str) -> int:
    return _LONG.index(part) if part in _LONG else len(_LONG)


def _run_part(name: str, plan: Plan) -> None:
    log = plan.place(name).with_suffix(".log")
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(name)s %(message)s", force=True)
    for schedule in PARTS[name](plan):
        _ended.put(schedule)


_ended: "SimpleQueue[Schedule]"
"""Of a process that runs parts."""


def _begin(ended: "SimpleQueue[Schedule]") -> None:
    """Begin a process that runs parts. It ends as soon as the suite's main process is gone, however that ended."""
    global _ended
    _ended = ended

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
