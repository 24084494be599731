"""What a dead letter says of itself: the names of its headers, and their values.

Also loaded on executors: standard library only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Final, Self

from onceward.protocol.values import JobName, JsonObject, ParticipantName

__all__ = [
    "ALIASES",
    "ATTEMPT",
    "DEAD_LETTERS",
    "FIRST_SEEN",
    "INPUT",
    "LETTER_POSITIONS",
    "OUTPUTS",
    "PREFIX",
    "Letter",
    "Run",
    "Wanted",
    "back_job",
    "named",
    "said_in",
]

DEAD_LETTERS = ParticipantName("dead-letters")
"""The name of their output, in every job."""
PREFIX = "onceward.error."
"""Of the headers that say why a record is a letter."""
ATTEMPT: Final = f"{PREFIX}attempt"
"""How often the job has failed to process the record; also a header of a record that was brought back."""
FIRST_SEEN: Final = f"{PREFIX}first_seen"
"""When a record that was brought back became a letter for the first time, in milliseconds; its next letter keeps it."""
_CONNECT: Final = "__connect.errors."
_STREAMS: Final = "__streams.errors."
ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "connect": {
        "topic": f"{_CONNECT}topic",
        "partition": f"{_CONNECT}partition",
        "offset": f"{_CONNECT}offset",
        "job": f"{_CONNECT}connector.name",
        "class": f"{_CONNECT}exception.class.name",
        "message": f"{_CONNECT}exception.message",
    },
    "streams": {
        "class": f"{_STREAMS}exception",
        "message": f"{_STREAMS}message",
        "topic": f"{_STREAMS}topic",
        "partition": f"{_STREAMS}partition",
        "offset": f"{_STREAMS}offset",
    },
}
"""Names that other programs give to what :data:`PREFIX` names: Kafka Connect (KIP-298) and Kafka Streams (KIP-1034)."""
INPUT: Final = "input"
"""Letters go back into the topics that their records were read from, and the running job reads them there."""
OUTPUTS: Final = "outputs"
"""Letters go through the transform of their job, and into its outputs."""
_LONGEST = 63
"""Characters of a job's name."""
_BACK = "-redrive"
LETTER_POSITIONS: Final = "kafka-letters"
"""The kind of the positions of a job that brings letters back. ``runs`` are of :class:`Run`, the present one last."""


def back_job(job: JobName) -> JobName:
    """Return the name of the job that brings the letters of ``job`` back."""
    return JobName(f"{job[: _LONGEST - len(_BACK)]}{_BACK}")


def named(said: Mapping[str, str], aliases: Iterable[str] = ()) -> dict[str, str]:
    """Return the headers of what a letter says, also by the names of ``aliases``."""
    return {PREFIX + name: text for name, text in said.items()} | {
        header: said[name] for alias in aliases for name, header in ALIASES[alias].items() if name in said
    }


def said_in(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return what the headers of a letter say: the opposite of :func:`named`."""
    return {
        name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(PREFIX)
    }


@dataclass(frozen=True, kw_only=True)
class Letter:
    """Why a record is a letter. A text is empty, and a number None, if no header says it."""

    job: str
    kind: str
    """The class of the exception; ``condition`` for a letter that a DataFrame has marked."""
    message: str = ""
    stage: str = ""
    output: str = ""
    """The output that refused the record."""
    topic: str = ""
    """Of the record, in the input; so are ``partition``, ``offset`` and ``timestamp``."""
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None
    """Milliseconds."""
    attempt: int = 1
    """How often the job has failed to process it."""
    first_seen: int | None = None
    """When the record became a letter for the first time, in milliseconds; None for the first letter."""
    cut: bool = False
    """The letter holds only the beginning of the value."""

    @classmethod
    def of(cls, headers: Iterable[tuple[str, bytes | None]]) -> Self | None:
        """Read the headers of a record; None if they are not those of a letter."""
        said = said_in(headers)
        if not said.get("job") or not said.get("class"):
            return None
        return cls(
            job=said["job"],
            kind=said["class"],
            message=said.get("message", ""),
            stage=said.get("stage", ""),
            output=said.get("output", ""),
            topic=said.get("topic", ""),
            partition=_number(said.get("partition")),
            offset=_number(said.get("offset")),
            timestamp=_number(said.get("timestamp")),
            attempt=_number(said.get("attempt")) or 1,
            first_seen=_number(said.get("first_seen")),
            cut="size" in said,
        )

    @property
    def place(self) -> str:
        """The input that it was, such as ``orders-0 offset 17``."""
        if self.partition is None or self.offset is None:
            return self.topic or "unknown"
        return f"{self.topic}-{self.partition} offset {self.offset}"


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which letters of a topic to bring back."""

    job: str
    topics: tuple[str, ...] = ()
    """The topics of the job's input, sorted: a letter of any other record cannot go back there."""
    into: str = INPUT
    """:data:`INPUT`; or :data:`OUTPUTS`: through the job's transform, and no topic is asked for."""
    attempts: int
    """A letter that the job has failed to process so often stays."""
    kind: str | None = None
    output: str | None = None
    since: int | None = None
    """Milliseconds: letters that were written earlier stay."""
    drop: str = ""
    """Not empty: nothing goes back, but the letters are done with. Who wants that, and why."""

    def refuses(self, letter: Letter, written: int) -> str:
        """Say why a letter stays that was written at ``written``, in milliseconds; empty if it does not."""
        if letter.job != self.job:
            return "of another job"
        if self.kind not in (None, letter.kind) or self.output not in (None, letter.output):
            return "not asked for"
        if self.since is not None and written < self.since:
            return "not asked for"
        if letter.cut:
            return "cut, because the record was too large"
        if self.into == INPUT and letter.topic not in self.topics:
            return "of a topic that the job does not read"
        if letter.attempt >= self.attempts:
            return f"failed {self.attempts} times or more"
        return ""

    def to_json(self) -> JsonObject:
        return {**asdict(self), "topics": list(self.topics)}

    @classmethod
    def of_json(cls, raw: JsonObject) -> Self:
        return cls(**{**raw, "topics": tuple(raw["topics"])})

    def __str__(self) -> str:
        """How a person says the same: with ``onceward redrive``, or with ``Pipeline.redrive``."""
        at = None if self.since is None else datetime.fromtimestamp(self.since / 1000, UTC)
        if self.into == OUTPUTS:
            asked = {"letter_class": self.kind, "output": self.output, "since": at, "attempts": self.attempts}
            given = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value is not None)
            return f"Pipeline.redrive({given})"
        since = None if at is None else at.isoformat()
        chosen = {"--class": self.kind, "--output": self.output, "--since": since, "--attempts": str(self.attempts)}
        chosen["--drop --yes --reason"] = self.drop or None
        options = [f"{name} {quote(value)}" for name, value in chosen.items() if value is not None]
        return " ".join([f"onceward redrive {self.job}", *options])


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run has looked at: it has brought back, or dropped, the letters that it wanted, unless an earlier run
    had."""

    wanted: Wanted
    ends: Mapping[int, int]
    """By partition of the letters' topic: the offset up to which it looked."""

    def has(self, letter: Letter, written: int, partition: int, offset: int) -> bool:
        return offset < self.ends.get(partition, 0) and not self.wanted.refuses(letter, written)

    def to_json(self) -> JsonObject:
        return {"wanted": self.wanted.to_json(), "ends": {str(number): end for number, end in self.ends.items()}}

    @classmethod
    def of_json(cls, raw: JsonObject) -> Self:
        return cls(wanted=Wanted.of_json(raw["wanted"]), ends={int(n): int(end) for n, end in raw["ends"].items()})
