"""The positions of a source of dead letters, as a typed value and as the document that a checkpoint keeps.

Document ``kafka-letters``, version 2::

    {"run": 1, "log": {"kind": "kafka-positions", "version": 2, "body": {...}},
     "runs": [{"wanted": {"job": "orders", "topics": ["orders"], "into": "input", "attempts": 3, "kind": null,
                          "output": null, "since": null, "drop": ""}, "ends": {"0": 12}}]}

``run`` is the number of the present run, and ``log`` where it is in the letters' topic. ``runs`` are all runs, the
present one last: each has brought back what it wanted below its ends, except what an earlier one had brought back. So
a letter is brought back once, whatever the later runs want. Version 1 had no ``into``: all went into the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onceward.common.errors import HaltedError
from onceward.connectors.letters import LETTER_POSITIONS, Run, Wanted
from onceward.protocol.values import Document
from onceward.sources.kafka.positions import KafkaPositions
from onceward.sources.kafka.positions import skip_to as skip_log_to

__all__ = ["LetterPositions", "skip_to"]

_VERSION = 2
_READABLE = ((LETTER_POSITIONS, 1), (LETTER_POSITIONS, _VERSION))


@dataclass(frozen=True, kw_only=True)
class LetterPositions:
    """Where a run is, and what the runs before it have brought back."""

    number: int
    """Of the run, from 1."""
    log: KafkaPositions
    wanted: Wanted
    """By the present run."""
    before: Sequence[Run]

    @property
    def done(self) -> bool:
        """True when the present run is at its end."""
        return all(cursor.done for _, cursor in self.log)

    @property
    def run(self) -> Run:
        return Run(wanted=self.wanted, ends={partition.number: cursor.next for partition, cursor in self.log})

    def followed(self, log: KafkaPositions, wanted: Wanted) -> "LetterPositions":
        """Return the beginning of the next run. Runs that wanted the same count as one."""
        ends = dict(self.run.ends)
        others = []
        for one in self.before:
            if one.wanted == self.wanted:
                ends |= {number: max(end, ends.get(number, 0)) for number, end in one.ends.items()}
            else:
                others.append(one)
        before = (*others, Run(wanted=self.wanted, ends=ends))
        return LetterPositions(number=self.number + 1, log=log, wanted=wanted, before=before)

    def to_document(self) -> Document:
        log = self.log.to_document()
        body = {
            "run": self.number,
            "log": {"kind": log.kind, "version": log.version, "body": log.body},
            "runs": [one.to_json() for one in (*self.before, self.run)],
        }
        return Document(kind=LETTER_POSITIONS, version=_VERSION, body=body)

    @classmethod
    def from_document(cls, document: Document) -> "LetterPositions":
        """Raises HaltedError for a document of another kind or a later version."""
        if (document.kind, document.version) not in _READABLE:
            raise HaltedError(
                f"The stored positions are of kind {document.kind!r}, version {document.version}, and not those of a "
                f"job that brings dead letters back ({LETTER_POSITIONS!r}, version {_VERSION}). Nothing was read. "
                "Another job has this name, or a newer version of Onceward ran it: use that version."
            )
        *before, present = map(Run.of_json, document.body["runs"])
        log = KafkaPositions.from_document(Document(**document.body["log"]))
        return cls(number=document.body["run"], log=log, wanted=present.wanted, before=before)


def skip_to(document: Document, topic: str, partition: int, offset: int) -> tuple[Document, int]:
    """As :func:`onceward.sources.kafka.positions.skip_to`, of the run's place in the letters' topic."""
    try:
        positions = LetterPositions.from_document(document)
    except HaltedError as error:
        raise ValueError(str(error)) from None
    log, former = skip_log_to(positions.log.to_document(), topic, partition, offset)
    return replace(positions, log=KafkaPositions.from_document(log)).to_document(), former
