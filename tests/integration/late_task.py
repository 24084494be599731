"""A task in its own process, without a driver that waits for it: ``python -m tests.integration.late_task SPEC``.

It writes one record in a transaction of generation 1, slot 0, and prints ``voted``, or ``failed`` and the reason.
"""

import json
import sys
from datetime import timedelta

from onceward import KafkaSink
from onceward.connectors.interfaces import JobContext, writer_options
from onceward.connectors.tasks import CheckpointTask
from onceward.executor.slots import Attempt
from onceward.protocol.values import JobName
from tests.support.sink_job import batch
from tests.support.slots import write_slot


def main() -> int:
    spec = json.loads(sys.argv[1])
    context = JobContext(job=JobName(spec["job"]), checkpoint_timeout=timedelta(minutes=2))
    sink = KafkaSink(spec["servers"], topic=spec["sink"]).connect(context)
    sink.preflight()
    task = CheckpointTask(
        job=spec["job"],
        generation=1,
        checkpoint=2,
        splits=(),
        columns=(),
        sinks={sink.participant.name: writer_options(sink)},
    )
    try:
        write_slot(sink.write(), Attempt(task=task, slot=0, number=100), [batch(b"written by a zombie")])
    except Exception as error:  # noqa: BLE001 - the test examines any error
        print("failed:", error, flush=True)
        return 1
    print("voted", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
