"""The example's sink, wrong in one way each: what a promise is worth is shown by the sinks that break it."""

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from custom_sink import DirectorySession, DirectorySink, DirectorySystem, FileWriter, StagedFile

from onceward.connectors import (
    Author,
    CheckpointId,
    Claim,
    Committable,
    FencedError,
    JobContext,
    JobName,
    Origin,
    Outcome,
    Place,
    PreCommitted,
    Resource,
    Settlement,
    SlotContext,
    TransactionHandle,
    Unfit,
    Vote,
)
from onceward.testing import SinkCase

__all__ = ["WRONG", "WrongSink", "directory_case"]


class Session(DirectorySession):
    """The example's, which also knows its job."""

    job: JobName


@dataclass(frozen=True, kw_only=True)
class WrongSink:
    """Parts to use in place of the example's, and the promises that must notice."""

    breaks: Sequence[str]
    session: type[Session] = Session
    system: type[DirectorySystem] = DirectorySystem
    slot: type[StagedFile] = StagedFile


def directory_case(directory: Path, wrong: WrongSink = WrongSink(breaks=())) -> SinkCase:
    """A sink that writes to ``directory``."""

    class WrongDirectory(DirectorySink):
        def connect(self, context: JobContext) -> DirectorySession:
            made = wrong.session(self)
            made._system = wrong.system(directory)
            made.job = context.job
            if wrong.slot is not StagedFile:
                made.write = lambda: Writer(staged=str(directory / ".staged"), slot=wrong.slot)  # type: ignore[method-assign]
            return made

    def sink(name: str) -> DirectorySink:
        return WrongDirectory(str(directory), name=name)

    def visible() -> list[bytes]:
        return [line for file in directory.glob("[!.]*") for line in file.read_bytes().splitlines()]

    return SinkCase(sink=sink, system=lambda: wrong.system(directory), visible=visible, within=0)


@dataclass(frozen=True)
class Writer(FileWriter):
    """Opens slots of a wrong kind."""

    slot: type[StagedFile] = field(default=StagedFile, kw_only=True)

    def open(self, context: SlotContext) -> StagedFile:
        return self.slot(self.staged, context)


def file_of(committable: Committable) -> str:
    return str(committable.document.body["file"])


# -- tasks


class WritesWhereReadersLook(Session):
    def write(self) -> FileWriter:
        return FileWriter(str(self._directory))


class VotesForAnEmptySlot(StagedFile):
    def finish(self) -> Vote:
        return replace(super().finish(), body={"file": self._name})


class SharesABuffer(StagedFile):
    waiting: ClassVar[list[bytes]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.waiting.extend(batch.column("value").to_pylist())
        self._records += batch.num_rows

    def finish(self) -> Vote:
        self._file.writelines(value + b"\n" for value in self.waiting)
        self.waiting.clear()
        return super().finish()


class CountsBatches(StagedFile):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        self._records += 1 - batch.num_rows


class WritesWhatItLooksAt(StagedFile):
    def unfit(self, batch: pa.RecordBatch) -> Sequence[Unfit]:
        super().write(batch)
        return ()

    def write(self, batch: pa.RecordBatch) -> None:
        pass


class ShowsWhatItAbandons(StagedFile):
    def abandon(self) -> None:
        super().abandon()
        staged = Path(self._file.name)
        staged.rename(staged.parent.parent / staged.name)


class AppendsToTheFormerAttempt(StagedFile):
    def __init__(self, directory: str, context: SlotContext) -> None:
        super().__init__(directory, context)
        self._file.close()
        os.unlink(self._file.name)
        self._name = f"{self._name.rpartition('.')[0]}.0"
        self._file = open(os.path.join(directory, self._name), "ab")  # noqa: SIM115


# -- pre-commit


class ChecksNothing(Session):
    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> PreCommitted:
        for vote in votes:
            (self._staged / str(vote.body.get("file"))).touch()
        return super().pre_commit(checkpoint, votes, origins, leftovers=leftovers)


class SweepsInItsPreCommit(Session):
    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> PreCommitted:
        made = super().pre_commit(checkpoint, votes, origins, leftovers=leftovers)
        self._system.sweep(self.job, keep=made.committables)
        return made


class StoresATuple(Session):
    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> PreCommitted:
        made = super().pre_commit(checkpoint, votes, origins, leftovers=leftovers)
        return PreCommitted(
            committables=tuple(
                replace(one, document=replace(one.document, body={**one.document.body, "size": (1, 2)}))
                for one in made.committables
            )
        )


class EndsAllWhenItCloses(Session):
    def close(self) -> None:
        self._system.sweep(self.job)


class NamesItsProcess(Session):
    _processes = count()

    def writes(self) -> Collection[Resource]:
        return [replace(one, name=f"{one.name} of {next(self._processes)}") for one in super().writes()]


# -- commit and abort


class CommitsAllOfTheJob(DirectorySystem):
    def commit(self, author: Author, committables: Sequence[Committable], **given: Any) -> Sequence[Settlement]:
        settled = super().commit(author, committables, **given)
        for staged in self._staged.glob(f"{author.job}.*.*.*.*.*") if committables else ():
            staged.rename(self._visible / staged.name)
        return settled


class CommitsWholeCheckpoints(DirectorySystem):
    def commit(self, author: Author, committables: Sequence[Committable], **given: Any) -> Sequence[Settlement]:
        settled = super().commit(author, committables, **given)
        for name in map(file_of, committables):
            for staged in self._staged.glob(f"{name.rsplit('.', 2)[0]}.*"):
                staged.rename(self._visible / staged.name)
        return settled


class CommitsACopy(DirectorySystem):
    _copies = count()

    def commit(self, author: Author, committables: Sequence[Committable], **given: Any) -> Sequence[Settlement]:
        for name in map(file_of, committables):
            if (self._visible / name).exists():
                shutil.copy(self._visible / name, self._visible / f"{name}.{next(self._copies)}")
        return super().commit(author, committables, **given)


class AbortsOnce(DirectorySystem):
    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        for name in map(file_of, committables):
            (self._staged / name).unlink()


class RemembersInMemory(DirectorySystem):
    """Ends only what the sink of this process has opened: a system without a sink has no generation."""

    def commit(self, author: Author, committables: Sequence[Committable], **given: Any) -> Sequence[Settlement]:
        if self.generation:
            return super().commit(author, committables, **given)
        return [self.outcome(one) for one in committables]

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        if self.generation:
            super().abort(author, committables)


class SettlesHalf(DirectorySystem):
    def commit(self, author: Author, committables: Sequence[Committable], **given: Any) -> Sequence[Settlement]:
        return super().commit(author, committables, **given)[:1]


class BelievesItself(DirectorySystem):
    def commit(self, author: Author, committables: Sequence[Committable], **given: Any) -> Sequence[Settlement]:
        settled = super().commit(author, committables, **given)
        return [replace(one, outcome=Outcome.COMMITTED) for one in settled]


class LooksOnlyAtWhatIsStaged(DirectorySystem):
    def outcome(self, committable: Committable) -> Settlement:
        found = super().outcome(committable)
        return found if found.outcome is Outcome.IN_DOUBT else replace(found, outcome=Outcome.LOST)


class AbortsWhatItAsksFor(DirectorySystem):
    def outcome(self, committable: Committable) -> Settlement:
        found = super().outcome(committable)
        (self._staged / file_of(committable)).unlink(missing_ok=True)
        return found


# -- forged documents


class _Trusting(DirectorySystem):
    def trusted(self, author: Author, part: Sequence[str]) -> Author:
        """The author, as a file name has it. ``part``: job, sink, generation, and more."""
        raise NotImplementedError

    def _each(self, author: Author, committables: Sequence[Committable]) -> Iterator[tuple[Author, Committable]]:
        for one in committables:
            yield self.trusted(author, file_of(one).split(".")), one

    def commit(self, author: Author, committables: Sequence[Committable], **given: Any) -> Sequence[Settlement]:
        settled: list[Settlement] = []
        for whose, one in self._each(author, committables):
            settled += super().commit(whose, [one], **given)
        return settled

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        for whose, one in self._each(author, committables):
            super().abort(whose, [one])


class TrustsTheJob(_Trusting):
    def trusted(self, author: Author, part: Sequence[str]) -> Author:
        return replace(author, job=JobName(part[0]))


class TrustsTheSink(_Trusting):
    def trusted(self, author: Author, part: Sequence[str]) -> Author:
        return replace(author, participant=type(author.participant)(part[1]))


class TrustsTheGeneration(_Trusting):
    def trusted(self, author: Author, part: Sequence[str]) -> Author:
        return replace(author, generations=range(1, int(part[2]) + 1))


class ChecksAsItCommits(_Trusting):
    """Refuses a forged document after it has committed those before it."""

    def trusted(self, author: Author, part: Sequence[str]) -> Author:
        return author


# -- sweeps


class SweepsNothing(DirectorySystem):
    def sweep(self, job: JobName, **given: Any) -> Sequence[str]:
        return ()


class ListsNothing(DirectorySystem):
    def sweep(self, job: JobName, **given: Any) -> Sequence[str]:
        super().sweep(job, **given)
        return ()


class SweepsWhatIsVisible(DirectorySystem):
    def sweep(self, job: JobName, **given: Any) -> Sequence[str]:
        for visible in self._visible.glob(f"{job}.*"):
            visible.unlink()
        return super().sweep(job, **given)


class _Sweeps(DirectorySystem):
    def swept(self, job: JobName, keep: Collection[Committable]) -> Iterator[Path]:
        raise NotImplementedError

    def sweep(self, job: JobName, *, keep: Collection[Committable] = (), **_: Any) -> Sequence[str]:
        found = list(self.swept(job, keep))
        for path in found:
            path.unlink()
        return [path.name for path in found]


class SweepsOtherJobs(_Sweeps):
    def swept(self, job: JobName, keep: Collection[Committable]) -> Iterator[Path]:
        kept = set(map(file_of, keep))
        return (path for path in self._staged.glob(f"{job}*.*.*.*.*.*") if path.name not in kept)


class SweepsOtherSinks(_Sweeps):
    def swept(self, job: JobName, keep: Collection[Committable]) -> Iterator[Path]:
        own = {name for name in map(file_of, keep) if name.split(".")[1] == "first"}
        return (self._staged / name for name in self.leftovers(job) if name not in own)


class SweepsNewerGenerations(_Sweeps):
    def swept(self, job: JobName, keep: Collection[Committable]) -> Iterator[Path]:
        kept = set(map(file_of, keep))
        return (path for path in self._staged.glob(f"{job}.*.*.*.*.*") if path.name not in kept)


# -- claims and texts


class ForgetsAPartOfTheClaim(DirectorySystem):
    def _write_claim(self, job: JobName, claim: Claim) -> None:
        super()._write_claim(job, replace(claim, amendment=0))


class HasOneClaim(DirectorySystem):
    def _claim(self, job: JobName) -> Path:
        return self._staged / "the.claim"


class TakesAnyClaim(DirectorySystem):
    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        self._write_claim(job, claim)
        self._job = job


class RenewsAnyClaim(DirectorySystem):
    def renew_claim(self, claim: Claim, **_: Any) -> bool:
        self._write_claim(self._job, claim)
        return True


class FencesTheNewerDriver(DirectorySystem):
    def renew_claim(self, claim: Claim, **given: Any) -> bool:
        try:
            return super().renew_claim(claim, **given)
        except FencedError:
            self._write_claim(self._job, claim)
            raise


class CommitsBeforeItRenews(DirectorySystem):
    def renew_claim(self, claim: Claim, **given: Any) -> bool:
        for staged in self._staged.glob(f"{self._job}.*.*.*.*.*"):
            staged.rename(self._visible / staged.name)
        return super().renew_claim(claim, **given)


class DescribesAnObject(DirectorySystem):
    def describe(self, committable: Committable) -> str:
        text: Any = asdict(committable)
        return text  # type: ignore[no-any-return]


class NamesAnotherPlace(DirectorySystem):
    def place(self, committable: Committable) -> Place:
        return Place(id="elsewhere")


class HandsOutAHandle(DirectorySystem):
    def handle(self, committable: Committable) -> TransactionHandle:
        return TransactionHandle(file_of(committable))


class HasNoId(DirectorySystem):
    _ids = count()

    def id(self) -> str:
        return str(next(self._ids))


def made(part: str, wrong: type[Any], *breaks: str) -> tuple[str, WrongSink]:
    parts: dict[str, Any] = {part: wrong}
    return wrong.__name__, WrongSink(breaks=breaks, **parts)


FORGED: Callable[[str], str] = "a_document_of_{}_is_refused_and_ends_nothing".format
WRONG: dict[str, WrongSink] = dict(
    (
        made("session", WritesWhereReadersLook, "nothing_is_visible_before_the_decision"),
        made("slot", WritesWhatItLooksAt, "a_slot_that_looks_for_what_it_cannot_write_writes_nothing_of_it"),
        made("slot", VotesForAnEmptySlot, "a_slot_without_records_has_no_committable"),
        made("slot", SharesABuffer, "slots_that_are_open_together_do_not_mix"),
        made("slot", CountsBatches, "a_slot_without_records_has_no_committable"),
        made("slot", ShowsWhatItAbandons, "an_abandoned_slot_shows_nothing"),
        made("slot", AppendsToTheFormerAttempt, "of_two_attempts_only_the_one_that_voted_is_visible"),
        made("session", ChecksNothing, "a_vote_whose_transaction_is_gone_fails_its_checkpoint"),
        made("session", SweepsInItsPreCommit, "a_pre_commit_ends_nothing"),
        made("session", StoresATuple, "committables_survive_json"),
        made("session", EndsAllWhenItCloses, "a_closed_sink_has_ended_nothing"),
        made("session", NamesItsProcess, "a_sink_names_the_same_destinations_in_every_process"),
        made("system", CommitsAllOfTheJob, "a_commit_shows_what_was_written_once_and_nothing_else"),
        made("system", CommitsWholeCheckpoints, "a_slot_commits_without_the_others"),
        made("system", CommitsACopy, "a_repeated_commit_changes_nothing"),
        made("system", AbortsOnce, "a_repeated_abort_changes_nothing"),
        made(
            "system",
            RemembersInMemory,
            "another_process_commits_by_the_documents_alone",
            "another_process_aborts_by_the_documents_alone",
        ),
        made("system", SettlesHalf, "a_repeated_commit_changes_nothing"),
        made("system", BelievesItself, "a_late_commit_of_an_aborted_slot_commits_nothing"),
        made("system", LooksOnlyAtWhatIsStaged, "the_outcome_after_a_lost_answer_is_committed"),
        made("system", AbortsWhatItAsksFor, "asking_for_an_outcome_changes_nothing"),
        made("system", TrustsTheJob, FORGED("another_job")),
        made("system", TrustsTheSink, FORGED("another_sink")),
        made("system", TrustsTheGeneration, FORGED("a_later_generation")),
        made("system", ChecksAsItCommits, *map(FORGED, ("another_job", "another_sink", "a_later_generation"))),
        made("system", SweepsNothing, "a_sweep_ends_what_it_does_not_keep"),
        made("system", ListsNothing, "a_sweep_ends_what_it_does_not_keep"),
        made("system", SweepsWhatIsVisible, "a_repeated_sweep_changes_nothing"),
        made("system", SweepsOtherJobs, "a_sweep_spares_other_jobs"),
        made("system", SweepsOtherSinks, "a_sweep_spares_what_all_sinks_of_the_job_keep"),
        made("system", SweepsNewerGenerations, "a_sweep_spares_a_newer_generation"),
        made("system", ForgetsAPartOfTheClaim, "a_claim_is_read_back_as_it_was_written"),
        made("system", HasOneClaim, "a_claim_is_read_back_as_it_was_written"),
        made("system", TakesAnyClaim, "a_claim_is_taken_only_in_place_of_the_one_that_was_seen"),
        made("system", RenewsAnyClaim, "a_driver_whose_claim_was_replaced_commits_nothing"),
        made("system", FencesTheNewerDriver, "a_driver_whose_claim_was_replaced_commits_nothing"),
        made("system", CommitsBeforeItRenews, "a_driver_whose_claim_was_replaced_commits_nothing"),
        made("system", DescribesAnObject, "what_people_read_is_text"),
        made("system", NamesAnotherPlace, "a_committable_names_its_system"),
        made("system", HandsOutAHandle, "an_open_transaction_is_listed_under_the_handle_of_its_committable"),
        made("system", HasNoId, "what_people_read_is_text"),
    )
)
