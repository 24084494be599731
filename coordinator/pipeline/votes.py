"""Check that the votes of one Spark job are complete; otherwise the checkpoint fails."""

from collections.abc import Iterable

from onceward.coordinator.errors import CheckpointFailedError
from onceward.coordinator.pipeline.tasks import Vote


def check_votes(texts: Iterable[str], expected: int | None) -> tuple[Vote, ...]:
    """Return the votes ordered by slot: 0..n-1, each once.

    ``expected`` is n if it is known before the job (plans without a shuffle), else None: Spark may choose it during the
    run. Raises CheckpointFailedError when a slot is missing or voted twice: its records would be lost or doubled.
    """
    votes = sorted((Vote.from_json(text) for text in texts), key=lambda vote: vote.slot)
    slots = [vote.slot for vote in votes]
    if slots != list(range(len(slots))) or (expected is not None and len(slots) != expected):
        wanted = f"0 to {expected - 1}" if expected is not None else "a gapless row from 0"
        raise CheckpointFailedError(
            f"The Spark job returned votes of slots {slots}, wanted {wanted}. Nothing of it becomes visible; "
            "its records belong to the next checkpoint."
        )
    return tuple(votes)
