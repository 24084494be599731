"""What a job writes to: pre-commit it, and end what its tasks have left open."""

import math
from collections.abc import Collection, Sequence

from onceward.connectors.interfaces import Origin, PreCommitted
from onceward.connectors.tasks import Vote
from onceward.driver.members import Members
from onceward.protocol.values import CheckpointId, Committable

__all__ = ["LISTING_INTERVAL_S", "Outputs"]

LISTING_INTERVAL_S = 1.0
"""Between two looks for leftovers while tasks stay: these have no attempts that lose, and what others left open only
holds readers back. Two requests less for each checkpoint."""


class Outputs:
    """The outputs of one generation, on the driver's main thread."""

    def __init__(self, members: Members) -> None:
        self._m = members
        self._looked = -math.inf
        """When leftovers were looked for last, on the runtime's monotonic clock."""

    def pre_commit(
        self,
        checkpoint: CheckpointId,
        votes: Sequence[Vote],
        origins: Sequence[Origin],
        *,
        keep: Collection[Committable],
        staying: Collection[str] = (),
    ) -> PreCommitted:
        """Pre-commit, then end every open transaction of the job that belongs neither to a vote nor to ``keep``, nor
        has one of the marks ``staying``: losing attempts. See :meth:`Sink.pre_commit` and :meth:`Committer.sweep`."""
        m = self._m
        now = m.runtime.monotonic()
        due = not staying or now - self._looked >= LISTING_INTERVAL_S
        made = m.sink.pre_commit(checkpoint, votes, origins, leftovers=due)
        if due:
            self._looked = now
            m.committer.sweep(m.job, keep=(*made.committables, *keep), staying=staying, known=(made,))
        return made

    def end_leftovers(self, *, keep: Collection[Committable], staying: Collection[str] = ()) -> Sequence[str]:
        """See :meth:`Committer.sweep`."""
        return self._m.committer.sweep(self._m.job, keep=keep, staying=staying)
