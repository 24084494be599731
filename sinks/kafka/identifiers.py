"""Transactional ids: ``<job>.<sink>.<generation>.<worker>.<n>`` (docs/protocol.md#transactional-ids).

Names cannot contain a dot, so exactly the ids with five parts separated by four dots are ours: a job never mistakes
another job's id for its own, even if one name is a prefix of the other.

Also runs on executors: standard library only.
"""

import re
from dataclasses import dataclass

__all__ = ["TransactionalId", "claim_name", "job_of", "job_pattern"]

_NAME = r"[a-z0-9][a-z0-9_-]{0,62}"
_ID = re.compile(
    rf"(?P<job>{_NAME})\.(?P<sink>{_NAME})\.(?P<generation>\d{{1,16}})\.(?P<worker>[0-9a-f]{{8,32}})\.(?P<n>\d{{1,10}})"
)

_CLAIM = re.compile(rf"(?P<job>{_NAME})\.claim")


@dataclass(frozen=True, kw_only=True, order=True)
class TransactionalId:
    """An id owned by one Python worker process of one generation; no other process begins transactions with it."""

    job: str
    sink: str
    generation: int
    worker: str
    """Random token of one Python worker process, lower-case hex."""
    n: int
    """Running number of the id within its worker."""

    def __str__(self) -> str:
        return f"{self.job}.{self.sink}.{self.generation}.{self.worker}.{self.n}"

    @property
    def suffix(self) -> str:
        """The part that distinguishes the ids of one job, sink and generation."""
        return f"{self.worker}.{self.n}"

    @classmethod
    def parse(cls, text: str) -> "TransactionalId | None":
        """Return the parts of one of our ids, or None if ``text`` is not one."""
        match = _ID.fullmatch(text)
        if match is None:
            return None
        return cls(
            job=match["job"],
            sink=match["sink"],
            generation=int(match["generation"]),
            worker=match["worker"],
            n=int(match["n"]),
        )


def job_pattern(job: str) -> str:
    """Return the pattern that every id of ``job`` matches, for the broker (RE2/J, matched against the whole id)."""
    return re.escape(job) + r"\..*"


def job_of(name: str) -> str | None:
    """Return the job that a transactional id belongs to, by its form; None if it is not one of ours."""
    parsed = TransactionalId.parse(name)
    if parsed is not None:
        return parsed.job
    claim = _CLAIM.fullmatch(name)
    return claim["job"] if claim is not None else None


def claim_name(job: str) -> str:
    """Return the consumer group whose offset is the claim of ``job``; also the transactional id that writes it."""
    return f"{job}.claim"
