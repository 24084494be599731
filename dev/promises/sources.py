"""What every source promises: each function checks one promise and is named as it.

``check_source(make)`` checks all. To see each as a test of its own::

    @pytest.mark.parametrize("promise", SOURCE_PROMISES)
    def test_my_source(promise: Promise[SourceCase]) -> None:
        promise(SourceCase(source=..., add=..., remove=...))
"""

from collections.abc import Callable
from functools import wraps

from onceward.common.errors import CheckpointFailedError, HaltedError
from onceward.connectors.interfaces import FollowedSource, ReplayRefusedError, Rereads, Resource
from onceward.dev.promises.checking import Promise, broken, check_all
from onceward.dev.promises.source_case import Runs, SourceCase, columns_of, from_json
from onceward.protocol.values import Role

__all__ = ["SOURCE_PROMISES", "check_source"]

SOURCE_PROMISES: list[Promise[SourceCase]] = []


def check_source(make: Callable[[], SourceCase]) -> None:
    """Check every promise of a source, each on a case of its own. Raises ExceptionGroup with all that are broken."""
    check_all("source", SOURCE_PROMISES, make)


def promise(check: Callable[[Runs], None]) -> Promise[SourceCase]:
    @wraps(check)
    def on_a_case(case: SourceCase) -> None:
        with Runs(case) as runs:
            check(runs)

    SOURCE_PROMISES.append(on_a_case)
    return on_a_case


# -- every record exactly once


@promise
def plans_from_the_start_read_every_record_once(runs: Runs) -> None:
    """What is there before the job, and what comes while it runs."""
    before = runs.add(20)
    run = runs.run()
    base = run.reads(run.start(), before, when="the records were there before the start")
    run.reads(base, runs.add(10), when="the records came after the first plans")


@promise
def an_input_that_is_empty_at_first_is_read_when_records_come(runs: Runs) -> None:
    """The start of a job holds the positions before its first record."""
    run = runs.run()
    start = run.start()
    if found := run.read(run.source.plan(start).splits):
        broken(f"An empty input has the records {found}.")
    run.reads(start, runs.add(5), when="the input was empty at the start")


@promise
def consecutive_plans_neither_overlap_nor_leave_a_gap(runs: Runs) -> None:
    """Each plan begins where the one before it has ended, however its end fell."""
    run = runs.run()
    base, found, added = run.start(), list[bytes](), list[bytes]()
    for records in (1, 7, 2, 5):
        added += runs.add(records)
        plan = run.plan(base, 1)
        found += run.read(plan.splits)
        base = run.after(plan)
    missing = [value for value in added if value not in found]
    run.reads(base, missing, when="records came between the plans")
    if len(set(found)) != len(found):
        broken(f"Consecutive plans have read {len(found)} records, of which {len(set(found))} are different ones.")


@promise
def a_plan_without_news_reads_nothing(runs: Runs) -> None:
    """And it leaves the positions as they are, else every checkpoint would be stored."""
    run = runs.run()
    base = run.reads(run.start(), runs.add(5), when="nothing else was added")
    plan = run.source.plan(base)
    if found := run.read(plan.splits):
        broken(f"A plan without news reads {found} again.")
    if not plan.records and run.after(plan) != base:
        broken(f"A plan of no records moves the positions from {base.body} to {run.after(plan).body}.")


# -- positions


@promise
def positions_survive_json(runs: Runs) -> None:
    """They are stored as JSON: a tuple comes back as a list, and a number as a key comes back as text."""
    run = runs.run()
    runs.add(5)
    start = run.source.resolve()
    for document in (start, run.source.snapshot(run.plan(run.begin(start), 1))):
        if document != from_json(document):
            broken(f"JSON turns {document.body} into {from_json(document).body}.")
        if not document.kind or document.version < 1:
            broken(f"A document needs a kind, and a version from 1 on: {document}.")


@promise
def another_driver_continues_at_the_positions(runs: Runs) -> None:
    """They are the only record of what was processed."""
    first = runs.run()
    base = first.reads(first.start(), runs.add(10), when="the first driver reads")
    first.close()
    more = runs.add(5)
    second = runs.run()
    second.reads(second.begin(base), more, when="a second driver continues at the positions of the first")


@promise
def what_a_failed_checkpoint_has_read_is_read_again(runs: Runs) -> None:
    """In the same process and in the next one: the next plan begins at the same base."""
    added = runs.add(5)
    first = runs.run()
    base = first.start()
    first.read(first.plan(base, 1).splits)
    added += runs.add(5)
    first.reads(base, added, when="a checkpoint before it was aborted")
    first.close()
    second = runs.run()
    second.reads(second.begin(base), added, when="the process of the aborted checkpoint has ended")


# -- reading


@promise
def splits_read_the_same_again(runs: Runs) -> None:
    """In the same order, also later and in another process: a task may run again, and a lost slot is written again."""
    runs.add(10)
    run = runs.run()
    base = run.start()
    plan = run.plan(base, 10)
    read = run.read(plan.splits)
    runs.add(10)
    run.plan(run.after(plan), 1)
    other = runs.run()
    other.begin(run.after(plan))
    for again in (run.read(plan.splits), other.read(plan.splits)):
        if again != read:
            broken(f"The same splits read {read} first, and then {again}.")


@promise
def a_task_may_stop_reading_halfway(runs: Runs) -> None:
    """Its transform fails, or Spark cancels it. The next attempt reads from the beginning of the split."""
    run = runs.run()
    added = runs.add(10)
    plan = run.plan(run.start(), 10)
    next(run.batches(plan.splits), None)
    if (found := sorted(run.read(plan.splits))) != sorted(added):
        broken(f"After an attempt that stopped halfway, the splits of {len(added)} records have {len(found)}.")


@promise
def columns_that_are_not_used_change_no_record(runs: Runs) -> None:
    """A reader may leave them empty. Every batch has all columns of the schema, in their order."""
    run = runs.run()
    added = runs.add(10)
    plan = run.plan(run.start(), 10)
    names = columns_of(run.source.schema)
    for used in (frozenset(names), frozenset[str](), frozenset(names[:1])):
        batches = list(run.batches(plan.splits, used))
        if (rows := sum(batch.num_rows for batch in batches)) != len(added):
            broken(f"Of {len(added)} records, {rows} are read when the columns {sorted(used)} are used.")
        if wrong := [batch.schema.names for batch in batches if batch.schema.names != names]:
            broken(f"The schema has the columns {names}, and a batch has {wrong[0]}.")
    if other := set(run.source.copied_columns) - set(names):
        broken(f"The columns {sorted(other)} are to be copied, and the schema has only {names}.")


@promise
def fewer_splits_hold_the_same_records(runs: Runs) -> None:
    """For plans that can be coalesced."""
    run = runs.run()
    runs.add(20)
    plan = run.plan(run.start(), 20)
    if not plan.can_coalesce:
        return
    read = sorted(run.read(plan.splits))
    for most in (1, 2, max(1, len(plan.splits))):
        merged = run.source.coalesce(plan.splits, most)
        if len(merged) > most:
            broken(f"{len(plan.splits)} splits were to become at most {most}, and became {len(merged)}.")
        if sorted(run.read(merged)) != read:
            broken(f"{len(plan.splits)} splits hold other records than the {len(merged)} that they were merged to.")


@promise
def halves_together_hold_the_same_records(runs: Runs) -> None:
    """They are divided again and again, to find the record at fault."""
    run = runs.run()
    runs.add(20)
    waiting = [run.plan(run.start(), 20).splits]
    for _ in range(100):
        if not waiting:
            return
        splits = waiting.pop()
        parts = run.source.halves(splits)
        if parts is None:
            continue
        whole, halves = sorted(run.read(splits)), [run.read(part) for part in parts]
        if sorted(halves[0] + halves[1]) != whole:
            broken(f"Splits of {len(whole)} records were divided into {len(halves[0])} and {len(halves[1])}.")
        if all(len(half) < len(whole) for half in halves):
            waiting += map(tuple, parts)
        elif whole:
            waiting += [tuple(part) for part, half in zip(parts, halves, strict=True) if half]
    if waiting:
        broken("Splits of 20 records were divided a hundred times, and can still be divided: the search would not end.")


# -- the end of the input


@promise
def a_source_without_an_end_never_finishes(runs: Runs) -> None:
    """Else the job would end when it has caught up."""
    run = runs.run()
    base = run.start()
    for _ in range(2):
        base = run.reads(base, runs.add(3), when="the source has no end")
        if run.source.plan(base).finished:
            broken("A source without an end reports that it has finished.")


@promise
def a_bounded_source_finishes_at_the_end_that_it_resolved(runs: Runs) -> None:
    """What comes later belongs to a later run. A driver that is started after a crash has the same end."""
    if runs.case.bounded is None:
        return
    added = runs.add(10)
    run = runs.run(runs.case.bounded)
    start = run.start()
    later = runs.add(5)
    if run.source.plan(start).finished and not run.read(run.source.plan(start).splits):
        broken("A bounded source has finished, and nothing was read.")
    end = run.reads(start, added, when="the source was to end where its input ended at the start")
    if not run.source.plan(end).finished:
        broken("A bounded source has read everything up to its end, and has not finished.")
    run.close()
    following = runs.run(runs.case.bounded)
    following.reads(following.begin(start), added, when="a driver started after a crash has the end of the first one")
    following.close()
    last = runs.run(runs.case.bounded)
    last.source.begin_new_run()
    base = last.begin(end)
    if last.source.plan(base).records:
        last.reads(base, later, when="a new run of a bounded source continues at the end of the former one")


# -- reports and questions


@promise
def reports_do_not_change_what_is_read(runs: Runs) -> None:
    """Of the loop to the source: how long a run took, what is settled. And the source's questions change nothing."""
    run = runs.run()
    added = runs.add(10)
    run.source.wakes(lambda: None)
    base, found = run.start(), list[bytes]()
    for failed in (True, False, False):
        run.source.has_news()
        plan = run.plan(base, 1) if not found else run.source.plan(base)
        run.source.has_news()
        run.source.observe_run(plan, 30.0, failed=failed, held=1.0)
        if isinstance(run.source, FollowedSource):
            run.source.observe_held(30.0, 1.0)
        if not failed:
            found += run.read(plan.splits)
            base = run.after(plan)
            run.source.on_settled(base)
            run.source.on_settled(base)
            run.source.mirror(base)
    if len(set(found)) != len(found):
        broken(f"{len(found)} records were read, of which {len(set(found))} are different ones.")
    run.reads(base, [value for value in added if value not in found], when="the loop has reported its runs")


@promise
def splits_are_described_as_text(runs: Runs) -> None:
    """Each committable keeps it, for listings and for the report of a halted job."""
    run = runs.run()
    runs.add(20)
    for splits in (run.plan(run.start(), 20).splits, ()):
        if not isinstance(text := run.source.describe(splits), str) or (splits and not text):
            broken(f"The splits {splits} are described as {text!r}.")


@promise
def a_source_knows_its_role_and_its_input(runs: Runs) -> None:
    """It reads nothing that it does not know."""
    run = runs.run()
    if run.source.participant.role is not Role.SOURCE:
        broken(f"The source takes part as a {run.source.participant.role}.")
    if run.source.reads(Resource(kind="a kind of another system", cluster="another", name="another")):
        broken("The source reads what belongs to a kind of system that does not exist: no job could use it.")


# -- replays, and input that is gone


@promise
def a_replay_of_what_was_just_read_is_allowed_or_refused(runs: Runs) -> None:
    """A source that cannot say whether its input is complete refuses, or has no such method: then the job halts."""
    run = runs.run()
    if not isinstance(run.source, Rereads):
        return
    runs.add(10)
    plan = run.plan(run.start(), 10)
    read = run.read(plan.splits)
    try:
        run.source.check_replay(plan.splits, run.after(plan))
    except ReplayRefusedError:
        return
    if run.read(plan.splits) != read:
        broken("A replay is allowed, and reads other records than the checkpoint.")


@promise
def a_replay_of_input_that_is_gone_is_refused(runs: Runs) -> None:
    """Else a lost slot would be replaced by a part of it."""
    run = runs.run()
    if not isinstance(run.source, Rereads):
        return
    runs.add(10)
    plan = run.plan(run.start(), 10)
    positions = run.after(plan)
    runs.case.remove()
    try:
        run.source.check_replay(plan.splits, positions)
    except (ReplayRefusedError, CheckpointFailedError, HaltedError):
        return
    broken("A replay of input that is gone is allowed.")


@promise
def input_that_is_gone_halts_the_job(runs: Runs) -> None:
    """When it is started again, before it reads: what was not read yet would be lost in silence."""
    run = runs.run()
    runs.add(10)
    start = run.start()
    run.close()
    runs.case.remove()
    try:
        runs.run().begin(start)
    except HaltedError:
        return
    broken("Input that was not read yet is gone, and the job would continue at its positions.")
