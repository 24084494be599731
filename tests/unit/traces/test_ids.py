"""The ids of traces follow from store, job and checkpoint, in every process alike."""

import hashlib
import itertools
import subprocess
import sys

from onceward.protocol.values import CheckpointId, JobName
from onceward.watch.traces.ids import ids_of

ORDERS = JobName("orders")


def test_the_ids_are_parts_of_the_documented_hash() -> None:
    found = ids_of("store-a", ORDERS, CheckpointId(17))
    documented = hashlib.sha256(b"store-a/orders/17").hexdigest()
    assert f"{found.trace:032x}{found.root:016x}{found.settle:016x}" == documented


def test_another_process_computes_the_same() -> None:
    code = (
        "from onceward.watch.traces.ids import ids_of\n"
        "from onceward.protocol.values import CheckpointId, JobName\n"
        "print(ids_of('store-a', JobName('orders'), CheckpointId(17)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == str(ids_of("store-a", ORDERS, CheckpointId(17)))


def test_stores_jobs_and_checkpoints_share_no_id() -> None:
    named = [
        (store, JobName(job), CheckpointId(checkpoint))
        for store in ("store-a", "store-b")
        for job in ("orders", "orders-1")
        for checkpoint in (1, 11, 2)
    ]
    made = [ids_of(*one) for one in named]
    assert len({one.trace for one in made}) == len(named)
    assert len({one.root for one in made} | {one.settle for one in made}) == 2 * len(named)
    assert all(one.trace and one.root and one.settle for one in made)
    assert all(a != b for a, b in itertools.combinations(made, 2))
