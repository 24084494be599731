"""A process that commits what another has pre-committed: ``committer.py DSN GENERATION DOCUMENT``."""

import json
import sys

from onceward.protocol.values import Author, Committable, Document, JobName, ParticipantName
from onceward.sinks.postgres.control.system import PostgresSystem

if __name__ == "__main__":
    dsn, generation, text = sys.argv[1:]
    document = Document(**json.loads(text))
    author = Author(
        job=JobName(document.body["job"]),
        participant=ParticipantName("sink"),
        generations=range(1, int(generation) + 1),
    )
    (settlement,) = PostgresSystem.open(dsn).commit(author, [Committable(slot=0, document=document)])
    print(settlement.outcome)
