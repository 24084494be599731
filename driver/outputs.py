"""What a job writes to: its sinks, in the order in which they were declared, and the systems that they are on.

A claim and leftovers are of a system: it has one claim for a job, whatever number of sinks are on it. Committables are
of a participant, so everything that holds them is a mapping by participant.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

from onceward.connectors.interfaces import Origin, Refusal, Resource, SinkSession
from onceward.connectors.tasks import Vote
from onceward.driver.journal import Journal
from onceward.driver.runtime import THREADS, Runtime
from onceward.protocol.committing import Age, Part, PreCommitted, System
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Claim,
    Committable,
    Generation,
    JobName,
    JsonObject,
    Participant,
    ParticipantName,
    Role,
    Settlement,
)

__all__ = [
    "LISTING_INTERVAL_S",
    "Claims",
    "Held",
    "Inputs",
    "Made",
    "OpenOutput",
    "Origins",
    "Outputs",
    "Votes",
    "place_of",
]

_T = TypeVar("_T")

_LONGEST_PLACE = 200
"""Characters."""
LISTING_INTERVAL_S = 1.0
"""Between two looks for leftovers while tasks stay: these have no attempts that lose, and what others left open only
holds readers back. Two requests less for each checkpoint."""

Votes: TypeAlias = Mapping[ParticipantName, Sequence[Vote]]
"""The votes of each sink's slots."""
Inputs: TypeAlias = Mapping[ParticipantName, Sequence[Sequence[JsonObject]]]
"""The splits that made each slot, for each sink. Sinks that one pass has written share one list."""
Origins: TypeAlias = Mapping[ParticipantName, Sequence[Origin]]
"""The origins of each sink's slots."""
Held: TypeAlias = Mapping[ParticipantName, Sequence[Committable]]
"""Committables by participant."""
Made: TypeAlias = Mapping[ParticipantName, PreCommitted]
"""What each sink has pre-committed."""
Claims: TypeAlias = Sequence[Claim | None]
"""The claim that each system shows."""


@dataclass(frozen=True, kw_only=True)
class OpenOutput:
    """A sink, and the system that it is on."""

    sink: SinkSession
    system: System
    place: str = ""
    """See :attr:`Participant.place`."""
    branch: bool = False
    """See :attr:`Participant.branch`."""

    @property
    def name(self) -> ParticipantName:
        return self.sink.participant.name

    @property
    def participant(self) -> Participant:
        return replace(self.sink.participant, place=self.place, branch=self.branch)


def place_of(writes: Collection[Resource]) -> str:
    """Describe for people where a sink writes."""
    names: dict[str, list[str]] = {}
    for one in writes:
        names.setdefault(one.kind, []).append(one.name)
    texts = [f"{kind} {', '.join(sorted(each))}" for kind, each in names.items()]
    text = "; ".join(texts)
    return text if len(text) <= _LONGEST_PLACE else f"{text[: _LONGEST_PLACE - 1]}…"


class Outputs:
    """The outputs of a job. :meth:`pre_commit` and :meth:`end_leftovers` are called by the driver's main thread, claims
    and commits of a generation that has recovered by the settler's thread."""

    def __init__(
        self,
        job: JobName,
        outputs: Sequence[OpenOutput],
        runtime: Runtime = THREADS,
        journal: Journal | None = None,
    ) -> None:
        self._job = job
        self._outputs = {output.name: output for output in outputs}
        self._runtime = runtime
        self._journal = journal or Journal(job)
        self._by_system: Sequence[Sequence[OpenOutput]] | None = None
        self._looked = -math.inf
        """When leftovers were looked for last, on the runtime's monotonic clock."""

    @property
    def participants(self) -> tuple[Participant, ...]:
        return tuple(output.participant for output in self._outputs.values())

    @property
    def names(self) -> tuple[ParticipantName, ...]:
        return tuple(self._outputs)

    def sink(self, name: ParticipantName) -> SinkSession:
        return self._outputs[name].sink

    def _systems(self) -> Sequence[Sequence[OpenOutput]]:
        """The outputs on each system, in the order in which the systems were declared."""
        if self._by_system is None:
            found: dict[str, list[OpenOutput]] = {}
            for output in self._outputs.values():
                found.setdefault(output.system.id() if len(self._outputs) > 1 else "", []).append(output)
            self._by_system = list(found.values())
        return self._by_system

    def _on(self, group: Sequence[OpenOutput], held: Held) -> tuple[Committable, ...]:
        return tuple(one for output in group for one in held.get(output.name, ()))

    def _on_all(self, ask: Callable[[Sequence[OpenOutput]], _T]) -> Sequence[_T]:
        """Ask all systems at the same time. Return their answers in order, or raise the first error, once all have
        answered."""
        return self._at_once([partial(ask, group) for group in self._systems()])

    def _at_once(self, calls: Sequence[Callable[[], _T]]) -> Sequence[_T]:
        """See :meth:`_on_all`."""
        first, *others = calls
        waits: list[Callable[[], _T]] = [self._runtime.beside(call) for call in others]
        waits.insert(0, first)
        answers, errors = [], []
        for answer in waits:
            try:
                answers.append(answer())
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def changes(self, former: Sequence[Participant]) -> str | None:
        """Describe how these outputs differ from those of the job's last driver; None if they do not."""
        before = [one.name for one in former if one.role is Role.SINK]
        new, gone = [n for n in self.names if n not in before], [n for n in before if n not in self._outputs]
        if not before or not (new or gone):
            return None
        said = []
        if new:
            said.append(f"{', '.join(new)} begins with the next checkpoint and gets nothing of what was read before")
        if gone:
            said.append(
                f"{', '.join(gone)} is gone: it is settled, and gets nothing from now on. To remove what it has left: "
                f"onceward close {self._job} {gone[0]} --reason 'NAME: REASON' --systems FILE"
            )
        return f"The outputs have changed. {'. '.join(said)}"

    # -- a generation

    def begin_generation(self, generation: Generation) -> None:
        for output in self._outputs.values():
            output.sink.begin_generation(generation)

    def read_claims(self) -> Claims:
        """Return the claim that each system shows. They differ if a driver has ended between two systems. The
        coordinator judges them: its store must be allowed to replace each."""
        return [group[0].system.read_claim(self._job) for group in self._systems()]

    def take_claim(self, claim: Claim, seen: Claims) -> None:
        """Claim the job on every system. See :meth:`System.take_claim`."""
        for group, found in zip(self._systems(), seen, strict=True):
            group[0].system.take_claim(self._job, claim, () if found is None else (found,))

    def prepare_claim(self, claim: Claim) -> None:
        """See :meth:`System.prepare_claim`."""
        for group in self._systems():
            group[0].system.prepare_claim(claim)

    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool], made: Made | None = None) -> bool:
        """Renew the claim on all systems at once. See :meth:`System.renew_claim`."""
        made = made or {}

        def renew(group: Sequence[OpenOutput]) -> bool:
            return group[0].system.renew_claim(claim, give_up=give_up, known=made.get(group[0].name))

        return all(self._on_all(renew))

    # -- transactions

    def pre_commit(
        self,
        checkpoint: CheckpointId,
        votes: Votes,
        origins: Origins,
        *,
        keep: Held,
        staying: Collection[str] = (),
    ) -> Made:
        """Pre-commit what each sink has votes for. Once the last sink of a system has, end every open transaction of
        the job there that belongs neither to a vote nor to ``keep``, nor has one of the marks ``staying``: losing
        attempts. See :meth:`SinkSession.pre_commit` and :meth:`System.sweep`."""
        now = self._runtime.monotonic()
        due = not staying or now - self._looked >= LISTING_INTERVAL_S
        made: dict[ParticipantName, PreCommitted] = {}
        for group in self._systems():
            writing = [output for output in group if output.name in votes]
            for output in writing:
                # one of them lists for all: the votes of all are in
                lists = due and output is writing[0]
                with self._measuring(output, "pre_commit"):
                    made[output.name] = output.sink.pre_commit(
                        checkpoint, votes[output.name], origins[output.name], leftovers=lists
                    )
            if due and writing:
                known = [made[output.name] for output in writing]
                kept = (*(one for each in known for one in each.committables), *self._on(group, keep))
                writing[0].system.sweep(self._job, keep=kept, staying=staying, known=known)
        if due:
            self._looked = now
        return made

    def end_leftovers(self, *, keep: Held, staying: Collection[str] = ()) -> Sequence[str]:
        """Abort what the job has open on every system, but for ``keep``. See :meth:`System.sweep`. Each sink's own
        object knows where to look for what was ended without its markers."""
        return [
            one
            for group in self._systems()
            for output in group
            for one in output.system.sweep(self._job, keep=self._on(group, keep), staying=staying)
        ]

    def check(self, author: Callable[[ParticipantName], Author], held: Held) -> None:
        """See :meth:`System.check`."""
        for name, committables in held.items():
            self._outputs[name].system.check(author(name), committables)

    def confirm(self, held: Held) -> None:
        """See :meth:`System.confirm`."""
        for name, committables in held.items():
            self._outputs[name].system.confirm(committables)

    def commit(
        self,
        author: Callable[[ParticipantName], Author],
        held: Held,
        *,
        give_up: Callable[[], bool],
        made: Made,
    ) -> Mapping[ParticipantName, Sequence[Settlement]]:
        """Commit and prove, on all systems at once and on each sink by sink: a system that is slow holds back no other.
        Those that belong together are committed by one call. See :meth:`System.commit`, :meth:`System.together`."""

        def commit(group: Sequence[OpenOutput]) -> Mapping[ParticipantName, Sequence[Settlement]]:
            return {output.name: commit_one(output) for output in group}

        def commit_one(output: OpenOutput) -> Sequence[Settlement]:
            with self._measuring(output, "commit"):
                return output.system.commit(
                    author(output.name), held[output.name], give_up=give_up, known=made.get(output.name)
                )

        def commit_together(group: Sequence[OpenOutput]) -> Mapping[ParticipantName, Sequence[Settlement]]:
            parts = [
                Part(system=output.system, author=author(output.name), committables=held[output.name])
                for output in group
            ]
            with contextlib.ExitStack() as measured:
                for output in group:
                    measured.enter_context(self._measuring(output, "commit"))
                found = group[0].system.commit_together(parts, give_up=give_up)
            return {output.name: each for output, each in zip(group, found, strict=True)}

        together = self._together(held)
        joint = {output.name for group in together for output in group}
        alone = [[one for one in group if one.name in held and one.name not in joint] for group in self._systems()]
        calls = [partial(commit, group) for group in alone if group]
        calls += [partial(commit_together, group) for group in together]
        return {name: each for found in self._at_once(calls) for name, each in found.items()} if calls else {}

    def _together(self, held: Held) -> Sequence[Sequence[OpenOutput]]:
        """The outputs that one call commits, where it is several."""
        if len(held) < 2:
            return ()
        found: dict[tuple[str, str], list[OpenOutput]] = {}
        for name, committables in held.items():
            output = self._outputs[name]
            if committables and (shared := output.system.together(committables[0])):
                found.setdefault((output.sink.participant.kind, shared), []).append(output)
        return [group for group in found.values() if len(group) > 1]

    @contextlib.contextmanager
    def _measuring(self, output: OpenOutput, step: str) -> Iterator[None]:
        """Show metrics that a step of one output begins, and how long it took."""
        began = self._runtime.monotonic()
        self._journal.show("output begins", output=output.name, step=step)
        yield
        self._journal.show("output ends", output=output.name, step=step, seconds=self._runtime.monotonic() - began)

    def abort(self, author: Callable[[ParticipantName], Author], held: Held) -> None:
        """See :meth:`System.abort`."""
        for name, committables in held.items():
            self._outputs[name].system.abort(author(name), committables)

    def ending(self) -> Sequence[str]:
        """Transactions of the job whose end is decided but not yet visible everywhere."""
        return [one for group in self._systems() for one in group[0].system.ending(self._job)]

    def ages(self, held: Held) -> Iterator[Age]:
        """The ages of transactions that are still open; those that do not time out have none."""
        for name, committables in held.items():
            yield from filter(None, map(self._outputs[name].system.age, committables))

    def describe(self, name: ParticipantName, committable: Committable) -> str:
        return self._outputs[name].system.describe(committable)

    def on_settled(self, checkpoint: CheckpointId, held: Held) -> None:
        """Called once what ``held`` has is proved committed, and nothing else of ``checkpoint`` is open."""
        for name, output in self._outputs.items():
            output.sink.on_settled(checkpoint, held.get(name, ()))

    # -- failures

    def explain(self, cause: str) -> Refusal | None:
        """See :meth:`SinkSession.explain`."""
        return next(filter(None, (output.sink.explain(cause) for output in self._outputs.values())), None)

    def hides_until_decided(self) -> bool:
        """See :meth:`SinkSession.hides_until_decided`."""
        return all(output.sink.hides_until_decided() for output in self._outputs.values())
