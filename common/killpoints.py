"""Kill points: named places between every two durable or remote actions, where a test can kill the process.

A kill point is a call, ``kill_point(KillPoint.X)``. It costs one comparison unless the environment arms it:

``ONCEWARD_KILL_POINT``
    ``name`` or ``name:N`` (the N-th time this process passes it), several separated by commas. With ``name:N:stop``
    SIGSTOP suspends the process instead of killing it, and SIGCONT wakes it as a zombie. With ``name:N:block`` only the
    passing thread stops, until the file that it leaves (below) is removed; all other threads continue.
``ONCEWARD_KILL_ONCE``
    a directory shared by all processes: each armed entry fires only once, in one process. The file that it leaves
    there, named after the entry, proves that the point was reached. Without the directory, every passing process dies.

The process dies by SIGKILL: no handler, no flush, no ``finally``, as when a machine is lost.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

__all__ = ["KILL_ONCE_VARIABLE", "KILL_POINT_VARIABLE", "KillPoint", "armed", "kill_point"]

KILL_POINT_VARIABLE = "ONCEWARD_KILL_POINT"
KILL_ONCE_VARIABLE = "ONCEWARD_KILL_ONCE"


class KillPoint(StrEnum):
    """The registry: all kill points, in the order in which a run passes them."""

    DRIVER_BEFORE_OPEN = "driver.before_open"
    DRIVER_AFTER_OPEN = "driver.after_open"
    DRIVER_BEFORE_CLAIM = "driver.before_claim"
    DRIVER_AFTER_CLAIM = "driver.after_claim"
    DRIVER_AFTER_RECOVERY_ABORT = "driver.after_recovery_abort"
    DRIVER_AFTER_RECOVERY_COMMIT = "driver.after_recovery_commit"
    DRIVER_AFTER_TRIGGER = "driver.after_trigger"
    DRIVER_AFTER_PLAN = "driver.after_plan"
    DRIVER_AFTER_CUT = "driver.after_cut"
    DRIVER_AFTER_VOTES = "driver.after_votes"
    DRIVER_AFTER_PRE_COMMIT = "driver.after_pre_commit"
    DRIVER_AFTER_ACKNOWLEDGE = "driver.after_acknowledge"
    DRIVER_AFTER_DECISION = "driver.after_decision"
    DRIVER_AFTER_CLAIM_RENEWAL = "driver.after_claim_renewal"
    DRIVER_BETWEEN_END_TXN = "driver.between_end_txn"
    DRIVER_AFTER_END_TXN = "driver.after_end_txn"
    DRIVER_AFTER_SETTLE = "driver.after_settle"
    DRIVER_AFTER_ABORT = "driver.after_abort"
    DRIVER_BEFORE_REPLAY = "driver.before_replay"
    DRIVER_AFTER_REPLAY = "driver.after_replay"
    DRIVER_AFTER_AMEND = "driver.after_amend"
    DRIVER_BEFORE_CLOSE = "driver.before_close"

    TABLE_AFTER_NOTE = "table.after_note"
    TABLE_AFTER_FILE = "table.after_file"
    TABLE_AFTER_DELETE = "table.after_delete"
    TABLE_BEFORE_COMMIT = "table.before_commit"
    TABLE_AFTER_COMMIT = "table.after_commit"

    BATCH_BEFORE_OFFER = "batch.before_offer"
    BATCH_AFTER_OFFER = "batch.after_offer"
    BATCH_AFTER_RUN = "batch.after_run"
    BATCH_BEFORE_REPLAY = "batch.before_replay"
    BATCH_AFTER_REPLAY = "batch.after_replay"
    BATCH_AFTER_SETTLE = "batch.after_settle"
    BATCH_BEFORE_STATE = "batch.before_state"
    BATCH_AFTER_STATE = "batch.after_state"

    TASK_BEFORE_BEGIN = "task.before_begin"
    TASK_AFTER_BEGIN = "task.after_begin"
    TASK_MID_WRITE = "task.mid_write"
    TASK_BEFORE_RECEIPT = "task.before_receipt"
    TASK_AFTER_RECEIPT = "task.after_receipt"
    TASK_AFTER_FLUSH = "task.after_flush"
    TASK_AFTER_CUT = "task.after_cut"
    TASK_AFTER_VOTE = "task.after_vote"

    COORDINATOR_BEFORE_GRANT = "coordinator.before_grant"
    COORDINATOR_AFTER_GRANT = "coordinator.after_grant"
    COORDINATOR_BEFORE_TRIGGER = "coordinator.before_trigger"
    COORDINATOR_AFTER_TRIGGER = "coordinator.after_trigger"
    COORDINATOR_BEFORE_DECISION = "coordinator.before_decision"
    COORDINATOR_AFTER_DECISION = "coordinator.after_decision"
    COORDINATOR_BEFORE_ABORT = "coordinator.before_abort"
    COORDINATOR_AFTER_ABORT = "coordinator.after_abort"
    COORDINATOR_BEFORE_SETTLED = "coordinator.before_settled"
    COORDINATOR_AFTER_SETTLED = "coordinator.after_settled"
    COORDINATOR_BEFORE_CLOSE = "coordinator.before_close"
    COORDINATOR_AFTER_CLOSE = "coordinator.after_close"

    ORPHAN_AFTER_ABORT = "orphan.after_abort"
    ORPHAN_AFTER_COMMIT = "orphan.after_commit"


_LOOK_S = 0.05


def _kill(_entry: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_entry: str) -> None:
    # To this thread: one that is sent to the process may reach another thread first, and this one runs until then.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _block(entry: str) -> None:
    marker = Path(os.environ[KILL_ONCE_VARIABLE]) / entry
    while marker.exists():
        time.sleep(_LOOK_S)


_ENDS: Mapping[str, Callable[[str], None]] = {"": _kill, "stop": _stop, "block": _block}


def _armed_entries(text: str) -> dict[KillPoint, tuple[int, Callable[[str], None]]]:
    armed: dict[KillPoint, tuple[int, Callable[[str], None]]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, more = entry.partition(":")
        count, _, end = more.partition(":")
        armed[KillPoint(name)] = int(count or 1), _ENDS[end]
    return armed


_armed = _armed_entries(os.environ.get(KILL_POINT_VARIABLE, ""))
_passed: Counter[KillPoint] = Counter()


def armed(point: KillPoint) -> bool:
    """True if the environment armed ``point``: a place that costs something may exist only for an armed point."""
    return point in _armed


def kill_point(point: KillPoint) -> None:
    """If the environment armed ``point``, kill this process by SIGKILL, stop it, or block this thread; else do
    nothing."""
    if not _armed or point not in _armed:
        return
    count, end = _armed[point]
    _passed[point] += 1
    entry = f"{point.value}:{count}"
    if _passed[point] == count and _first_ever(entry):
        end(entry)


def _first_ever(entry: str) -> bool:
    directory = os.environ.get(KILL_ONCE_VARIABLE)
    if not directory:
        return True
    marker = Path(directory) / entry
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
