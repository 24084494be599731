"""Whether a table has gone back: to an older copy of its storage or catalogue, or to an earlier version of its own.

A table keeps the number of a sink's last commit in its state. An older copy has a lower one. A table that was restored
or rolled back in the ordinary way keeps the number, and lacks the rows: its history shows that.
"""

from onceward.sinks.lake.control.tables import LakeTable
from onceward.sinks.lake.control.transactions import Place, place_of
from onceward.sinks.lake.documents import Before
from onceward.sinks.lake.identifiers import app_id

__all__ = ["lacks"]


def lacks(table: LakeTable, job: str, sink: str, last: Before) -> str:
    """Return why the table lacks the commit ``last``, and what to do; empty if nothing shows that it does. Raises as
    methods of the table do."""
    older = place_of(last.transaction, table.transaction(app_id(job, sink))) is Place.OPEN
    if not older and not _undone(table, job, sink, last.checkpoint):
        return ""
    why = (
        f"{table.state} does not know of that commit: an older copy of the table was put back"
        if older
        else f"the table was restored, or rolled back, to a state before that: {table.state} does not have its rows"
    )
    there = next((past.checkpoint for past in table.past_commits(job, sink) if not past.undone), None)
    newest, since = (
        ("CHECKPOINT, the newest one that the table has", "")
        if there is None
        else (str(there), f" The newest checkpoint of the job that it has is {there}; all rows after it are missing.")
    )
    return (
        f"Checkpoint {last.checkpoint} of job {job} was committed to {table.uri}, and {why}.{since} Nothing further was"
        " added. Put the newest state of the table back and start the job. Or write what is missing again, into all "
        f"outputs of the job: onceward restore {job} --from {newest} --reason 'NAME: REASON'. Or give the sink another "
        "name, to go without it."
    )


def _undone(table: LakeTable, job: str, sink: str, checkpoint: int) -> bool:
    return next((past.undone for past in table.past_commits(job, sink) if past.checkpoint == checkpoint), False)
