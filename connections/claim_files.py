"""A claim as numbered files: which store and generation own a job, swapped atomically where only creating a file is.

The files of a job are ``<job>.claim.1``, ``<job>.claim.2`` and so on. The one with the highest number is the claim, the
others are of the past. A process replaces claim *n* in three steps:

1. create the file *n* + 1, which the storage refuses if it exists;
2. list the files again: if any number is above *n* + 1, the process has lost;
3. delete old files, but never the newest ones.

Why at most one process replaces claim *n*, however slow it is:

- The highest number only grows. A file is created under a number above one that its creator has seen, and deleted only
  by a process that has seen a higher one, so the file with the highest number is never deleted.
- If step 2 finds *n* + 1 as the highest number, then it was highest when it was created, too. The creator had seen *n*
  as the highest before, and the number does not fall: between the two nothing was written. So it replaced what it saw.
- A process that slept may find the number *n* + 1 free again, because others are far above it and have deleted it. It
  can create the file, but step 2 then finds a higher one: it has lost, and its file does not count.
- If step 2 finds a higher number although this process was first, another one has replaced its claim since. It does not
  own the job either way, so it may report that it lost.

A listing must contain every file that is there during the whole call. The newest files stay undeleted so that the
listing still finds one when the claim is replaced while it runs: it would have to be replaced :data:`_KEPT` times.

If a tool deletes the files, the numbers begin again, and a process that slept may write its own above those of the
present owner. Neither harms the data:

- The owner writes a claim where none is left, and replaces an older one of its own store. The process that wrote that
  one takes itself for the owner until it renews. It commits only what their store has decided, and nothing twice.
- A process that no longer finds the file that it replaces looks at the newest below its own. If that is of a later
  generation or of another store, it has lost. A process of another store then finds its claim: both stop.

A job that is forgotten keeps a last file without a claim. If all were deleted, the numbers would begin again, and a
process that slept since could create a higher one.
"""

import json
import math
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from onceward.common.errors import ClaimChangedError, FencedError, HaltedError
from onceward.connections.storage import Storage, StorageError
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName

__all__ = ["ClaimFiles"]

_KEPT = 8
"""How many of the newest files of a job are kept."""
_LOOKS = 10


class _Found(NamedTuple):
    number: int
    """0 if there is no file."""
    claim: Claim | None


class _Held(NamedTuple):
    number: int
    claim: Claim


class ClaimFiles:
    """The claims in one folder, and this process's hold on one of them. Not thread-safe."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._job = JobName("none")
        self._held: _Held | None = None

    def read(self, job: JobName) -> Claim | None:
        """Return the claim on ``job``. Raises StorageError, and HaltedError for a claim that cannot be read."""
        return self._find(job).claim

    def jobs(self) -> Sequence[JobName]:
        """Return the jobs that have, or had, a claim, by name. Raises StorageError."""
        names = {name.partition(".claim.")[0] for name in self._storage.names(self._folder)}
        return sorted(map(JobName, names))

    def take(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        """Claim ``job`` in place of one of ``seen``, or where there is no claim. Raises ClaimChangedError if there is
        another, StorageError and HaltedError."""
        while True:
            found = self._find(job)
            if found.claim not in (None, claim, *seen):
                raise ClaimChangedError(
                    f"Job {job} was claimed by {_name(found.claim)} meanwhile. Nothing of the job was changed."
                )
            if found.claim == claim or self._replace(job, found.number, claim):
                number = found.number if found.claim == claim else found.number + 1
                self._job, self._held = job, _Held(number, claim)
                return

    def renew(self, claim: Claim) -> None:
        """Replace the claim that this object wrote last. Raises FencedError if there is another, StorageError and
        HaltedError."""
        held = self._held
        if held is None:
            raise FencedError("This process has not claimed the job. Nothing was written. Call take() first.")
        number = held.number
        while not self._replace(self._job, number, claim):
            found = self._find(self._job)
            # If it is there already, an earlier attempt was not answered, or what it replaces is gone.
            before = self._find(self._job, below=found.number) if found.claim == claim else found
            if before.number and not _may_replace(before.claim, held.claim):
                raise FencedError(
                    f"Job {self._job} was claimed by {_name(before.claim)}, while this process runs "
                    f"{_name(held.claim)}: it was taken over. What is settled stays; nothing further is committed here."
                )
            number = max(number, found.number)
            if found.claim == claim:
                self._held = _Held(number, claim)
                return
        self._held = _Held(number + 1, claim)

    def forget(self, job: JobName, last: Claim) -> None:
        """Remove the claim of ``job`` if it is of the store of ``last``, and not newer. Raises StorageError and
        HaltedError."""
        while True:
            found = self._find(job)
            mine = found.claim is not None and found.claim.store_id == last.store_id
            if found.claim is None or not mine or found.claim.generation > last.generation:
                return
            if self._replace(job, found.number, None):
                self._storage.delete(self._path(job, one) for one in self._numbers(job) if one <= found.number)
                return

    def _find(self, job: JobName, *, below: float = math.inf) -> _Found:
        """Return the newest one, of those with a number below ``below``."""
        for _ in range(_LOOKS):
            newest = max((number for number in self._numbers(job) if number < below), default=0)
            if newest == 0:
                return _Found(0, None)
            content = self._storage.read(self._path(job, newest))
            if content is not None:
                return _Found(newest, _parse(self._path(job, newest), content))
            # replaced and deleted between the two looks
        raise StorageError(
            f"The claim of job {job} could not be read: it was replaced {_LOOKS} times meanwhile. Nothing was changed. "
            "Find out which programs run under this name."
        )

    def _replace(self, job: JobName, number: int, claim: Claim | None) -> bool:
        """Write ``claim`` in place of the one with ``number``. Return False if another process was there first, or may
        have been: the one with ``number`` is gone."""
        if not self._storage.create(self._path(job, number + 1), _content(claim)):
            return False
        numbers = self._numbers(job)
        if max(numbers, default=0) != number + 1 or number not in (0, *numbers):
            return False
        self._storage.delete(self._path(job, one) for one in numbers if one <= number + 1 - _KEPT)
        return True

    def _numbers(self, job: JobName) -> list[int]:
        form = re.compile(re.escape(job) + r"\.claim\.([1-9][0-9]*)")
        return [int(match[1]) for match in map(form.fullmatch, self._storage.names(self._folder)) if match]

    def _path(self, job: JobName, number: int) -> str:
        return f"{self._folder}/{job}.claim.{number}"


def _may_replace(found: Claim | None, held: Claim) -> bool:
    """Whether ``found`` is no takeover of ``held``: it is of the same process, or older."""
    if found is None:
        return False
    own = (found.store_id, found.generation, found.holder) == (held.store_id, held.generation, held.holder)
    return own or found.is_older_than(held)


def _content(claim: Claim | None) -> bytes:
    if claim is None:
        return b'{"version": 1, "forgotten": true}\n'
    fields = {
        "version": 1,
        "store": claim.store_id,
        "generation": claim.generation,
        "completed": claim.completed,
        "holder": claim.holder,
        "amendment": claim.amendment,
    }
    return json.dumps(fields).encode() + b"\n"


def _parse(path: str, content: bytes) -> Claim | None:
    try:
        raw = json.loads(content)
        if raw["version"] != 1:
            raise ValueError(f"version {raw['version']}")
        if raw.get("forgotten"):
            return None
        return Claim(
            store_id=str(raw["store"]),
            generation=Generation(int(raw["generation"])),
            completed=CheckpointId(int(raw["completed"])),
            holder=str(raw["holder"]),
            amendment=int(raw["amendment"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HaltedError(
            f"The claim {path} cannot be read ({error!r}), so the owner of its job is unknown. Nothing was changed. "
            "Use the release that wrote it, or a newer one; if it is damaged, make sure that no driver of the job "
            "runs, and delete it."
        ) from error


def _name(claim: Claim | None) -> str:
    return "no process" if claim is None else f"store {claim.store_id} for generation {claim.generation}"
