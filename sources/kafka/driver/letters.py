"""The source of a job that brings dead letters back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onceward.common.errors import HaltedError
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.interfaces import JobContext, Plan, Resource, SplitReader
from onceward.connectors.letters import OUTPUTS, Wanted
from onceward.protocol.values import Document, JsonObject
from onceward.sources.kafka.driver.source import KafkaSource
from onceward.sources.kafka.executor.letters import NAMES, LetterReader
from onceward.sources.kafka.letters import LetterPositions
from onceward.sources.kafka.positions import KafkaPositions

__all__ = ["LetterSource"]


class LetterSource(KafkaSource):
    """Reads the dead letters of a job as the records that they were: those that are wanted, and that no earlier run of
    this job has brought back. Each run looks at the whole topic as it is when the run begins."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        wanted: Wanted,
        partitions: Mapping[str, int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """
        partitions: how many each topic of ``wanted`` has, for letters that go into the input.
        columns: of the job's own source, for letters that go into its outputs.
        """
        super().__init__(
            cluster,
            topics=[topic],
            start="earliest",
            end="latest",
            columns=columns,
            include_headers=columns is None,
            mirror_offsets=False,
        )
        if columns is None:
            self.copied_columns = (*self.copied_columns, "topic", "partition")
        self._wanted = wanted
        self._partitions = dict(partitions or {})
        self._new = False
        """The last run is over: this one begins."""
        self._begun: LetterPositions | None = None
        """Where it begins; once per run, so that a repeated checkpoint begins at the same place."""

    def open(self, context: JobContext) -> None:
        super().open(context)
        self._new, self._begun = False, None

    def begin_new_run(self) -> None:
        self._new = True

    def resolve(self) -> Document:
        begun = LetterPositions(number=1, log=self._resolved(), wanted=self._wanted, before=())
        return begun.to_document()

    def restore(self, positions: Document) -> None:
        """See :meth:`Source.restore`. A run that is over may have had letters that are deleted now: the next one begins
        with those that are there."""
        stored = LetterPositions.from_document(positions)
        if not stored.done:
            self._refuse_another(stored)
        super().restore(stored.log.to_document())

    def plan(self, base: Document) -> Plan:
        present = self._present(LetterPositions.from_document(base))
        plan = super().plan(present.log.to_document())
        named = {"wanted": self._wanted.to_json(), "before": [one.to_json() for one in present.before]}
        positions = replace(present, log=KafkaPositions.from_document(plan.positions))
        return replace(
            plan, splits=tuple({**split, **named} for split in plan.splits), positions=positions.to_document()
        )

    def snapshot(self, plan: Plan) -> Document:
        super().snapshot(replace(plan, positions=_log(plan.positions)))
        return plan.positions

    def read(self) -> SplitReader:
        letters = replace(self._reader(), names=NAMES)
        return LetterReader(letters=letters, names=self._columns, partitions=self._partitions)

    def reads(self, resource: Resource) -> bool:
        """Return False also for the letters' topic: what this run adds to it is behind the end of the run."""
        return self._wanted.into != OUTPUTS and super().reads(resource)

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        super().check_replay(splits, _log(positions))

    def _resolved(self) -> KafkaPositions:
        return KafkaPositions.from_document(super().resolve())

    def _present(self, base: LetterPositions) -> LetterPositions:
        """Return where this run is."""
        if not base.done:
            self._refuse_another(base)
            return base
        begins = self._new or base.wanted != self._wanted
        if self._begun is None and begins:
            self._begun = base.followed(self._resolved(), self._wanted)
        if self._begun is None or base.number == self._begun.number:
            return base
        return self._begun

    def _refuse_another(self, stored: LetterPositions) -> None:
        """Raises HaltedError if another run has not ended."""
        if stored.wanted != self._wanted:
            raise HaltedError(
                f"A run that brings letters of job {stored.wanted.job} back has not ended, and this one wants other "
                "letters, or wants them elsewhere. Nothing was read. End that run first"
                + (f", for the topics {', '.join(stored.wanted.topics)}" if stored.wanted.topics else "")
                + f": {stored.wanted}"
            )


def _log(positions: Document) -> Document:
    return LetterPositions.from_document(positions).log.to_document()
