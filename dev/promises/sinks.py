"""What every sink promises: each function checks one promise and is named as it.

``check_sink(make)`` checks all. To see each as a test of its own::

    @pytest.mark.parametrize("promise", SINK_PROMISES)
    def test_my_sink(promise: Promise[SinkCase]) -> None:
        promise(SinkCase(sink=..., system=..., visible=...))
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps

from onceward.common.errors import CheckpointFailedError, ClaimChangedError, FencedError, HaltedError
from onceward.dev.promises.checking import Promise, broken, check_all
from onceward.dev.promises.sink_case import Driver, Jobs, SinkCase, from_json, outcomes_of, refuses
from onceward.protocol.values import Author, Committable, Outcome

__all__ = ["SINK_PROMISES", "check_sink"]

SINK_PROMISES: list[Promise[SinkCase]] = []


def check_sink(make: Callable[[], SinkCase]) -> None:
    """Check every promise of a sink, each on a case of its own. Raises ExceptionGroup with all that are broken."""
    check_all("sink", SINK_PROMISES, make)


def promise(check: Callable[[Jobs], None]) -> Promise[SinkCase]:
    @wraps(check)
    def on_a_case(case: SinkCase) -> None:
        with Jobs(case) as jobs:
            check(jobs)

    SINK_PROMISES.append(on_a_case)
    return on_a_case


# -- visible exactly once


@promise
def nothing_is_visible_before_the_decision(jobs: Jobs) -> None:
    """What a task has written, and what is pre-committed, may still be aborted: readers must not see it."""
    driver = jobs.driver()
    votes = [driver.write(b"a"), driver.write(b"b", slot=1)]
    jobs.shows(when="the tasks have finished, and the checkpoint is not decided")
    driver.pre_commit(*votes)
    jobs.shows(when="the checkpoint is pre-committed and not decided")


@promise
def a_commit_shows_what_was_written_once_and_nothing_else(jobs: Jobs) -> None:
    """Every record of every slot, and none of the next checkpoint, which is written meanwhile."""
    driver = jobs.driver()
    first = driver.prepared([b"a", b"b"], [b"c"], checkpoint=1)
    second = driver.prepared([b"d"], checkpoint=2)
    driver.commits(first)
    jobs.shows(b"a", b"b", b"c", when="checkpoint 1 is committed, and checkpoint 2 is not decided")
    driver.commits(second)
    jobs.shows(b"a", b"b", b"c", b"d", when="both checkpoints are committed")


@promise
def a_repeated_commit_changes_nothing(jobs: Jobs) -> None:
    """An answer may be lost, so the driver commits again; after its end, another process does."""
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    driver.commits(made)
    driver.commits(made)
    driver.commits(from_json(made), by=jobs.system())
    jobs.shows(b"a", b"b", when="the same checkpoint was committed three times")


@promise
def a_repeated_abort_changes_nothing(jobs: Jobs) -> None:
    """As for a commit. Nothing of an aborted checkpoint is visible."""
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    driver.aborts(made)
    driver.aborts(made)
    driver.aborts(from_json(made), by=jobs.system())
    jobs.shows(when="the checkpoint was aborted three times")


@promise
def a_slot_commits_without_the_others(jobs: Jobs) -> None:
    """Each slot is a transaction of its own: a commit that fails halfway leaves the rest to be committed. A sink whose
    checkpoint becomes visible as a whole makes no such promise."""
    if jobs.case.together:
        return
    driver = jobs.driver()
    first, second = driver.prepared([b"a"], [b"b"])
    driver.commits([first])
    jobs.shows(b"a", when="slot 0 alone is committed")
    driver.commits([first, second])
    jobs.shows(b"a", b"b", when="both slots are committed, slot 0 again")


# -- tasks


@promise
def a_slot_that_looks_for_what_it_cannot_write_writes_nothing_of_it(jobs: Jobs) -> None:
    """A job with dead letters asks first. What is found goes to no output, and what is not found goes to each once."""
    driver, wrong = jobs.driver(), jobs.case.refused
    looking = driver.open_slot(1)
    if found := looking.unfit(b"b"):
        broken(f"The slot cannot write rows {found} of a batch that it can write.")
    looking.abandon()
    slot = driver.open_slot(0)
    if wrong is not None and ((both := slot.unfit(b"a", wrong)), (alone := slot.unfit(wrong))) != ([1], [0]):
        broken(f"Of two records the slot cannot write the second, and it finds {both}, and {alone} if it is alone.")
    slot.unfit(b"a")
    slot.unfit(b"b")
    slot.write(b"a")
    driver.commits(driver.pre_commit(slot.finish()))
    jobs.shows(b"a", when="one record is written, and others were only looked at")


@promise
def a_slot_without_records_has_no_committable(jobs: Jobs) -> None:
    """It has nothing to commit; a checkpoint without slots neither."""
    driver = jobs.driver()
    without_batches, with_an_empty_batch = driver.open_slot(0), driver.open_slot(1)
    with_an_empty_batch.write()
    votes = [without_batches.finish(), with_an_empty_batch.finish(), driver.write(b"a", slot=2)]
    made = driver.pre_commit(*votes)
    of = [one.slot for one in made]
    if len(of) != 1 or not (jobs.case.together or of == [2]):
        broken(f"Slots 0 and 1 hold no record, slot 2 one, and the committables are of {of}.")
    if driver.pre_commit(checkpoint=2):
        broken("A checkpoint without slots has committables.")
    driver.commits(made)
    driver.commits(())
    jobs.shows(b"a", when="one of three slots has a record")


@promise
def slots_that_are_open_together_do_not_mix(jobs: Jobs) -> None:
    """A process may write several slots at a time, of one checkpoint or two."""
    driver = jobs.driver()
    first, second = driver.open_slot(checkpoint=1), driver.open_slot(checkpoint=2)
    for number in range(3):
        first.write(b"a%d" % number)
        second.write(b"b%d" % number)
    kept = driver.pre_commit(first.finish(), checkpoint=1)
    dropped = driver.pre_commit(second.finish(), checkpoint=2)
    driver.aborts(dropped)
    driver.commits(kept)
    jobs.shows(b"a0", b"a1", b"a2", when="checkpoint 1 is committed and checkpoint 2 aborted")


@promise
def an_abandoned_slot_shows_nothing(jobs: Jobs) -> None:
    """Its source or transform has failed; another attempt writes the same slot."""
    driver = jobs.driver()
    failed = driver.open_slot(0)
    failed.write(b"a")
    failed.abandon()
    driver.open_slot(1).abandon()
    made = driver.pre_commit(driver.write(b"a", b"b"))
    driver.sweep(*made)
    driver.commits(made)
    jobs.shows(b"a", b"b", when="an attempt was abandoned and the next one committed")


@promise
def of_two_attempts_only_the_one_that_voted_is_visible(jobs: Jobs) -> None:
    """Spark may run a task again although its first attempt has finished, and takes one vote."""
    driver = jobs.driver()
    driver.write(b"a", b"lost")
    made = driver.pre_commit(driver.write(b"a"))
    driver.sweep(*made)
    driver.commits(made)
    jobs.shows(b"a", when="the first of two attempts lost")


@promise
def a_vote_whose_transaction_is_gone_fails_its_checkpoint(jobs: Jobs) -> None:
    """Else the checkpoint would complete with records that nothing can make visible."""
    driver = jobs.driver()
    vote = driver.write(b"a")
    if driver.sweep():
        refuses(lambda: driver.pre_commit(vote), CheckpointFailedError, "A pre-commit of a vote that was swept")
        jobs.shows(when="the transaction was swept before its pre-commit")
    else:
        driver.commits(driver.pre_commit(vote))
        jobs.shows(b"a", when="a vote of which there was nothing to sweep was committed")


@promise
def a_pre_commit_ends_nothing(jobs: Jobs) -> None:
    """Leftovers are ended afterwards, with what all sinks of the job on the system keep."""
    first, second = jobs.driver(name="first"), jobs.driver(name="second")
    vote = second.write(b"b")
    made = first.prepared([b"a"])
    also = second.pre_commit(vote)
    first.commits(made)
    second.commits(also)
    jobs.shows(b"a", b"b", when="two sinks of a job have committed")


# -- any process


@promise
def another_process_commits_by_the_documents_alone(jobs: Jobs) -> None:
    """The driver is gone, and the store has kept the committables as JSON."""
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    driver.close()
    driver.commits(from_json(made), by=jobs.system())
    jobs.shows(b"a", b"b", when="another process has committed")


@promise
def another_process_aborts_by_the_documents_alone(jobs: Jobs) -> None:
    """As for a commit: what a dead driver left open holds readers back."""
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    driver.close()
    driver.aborts(from_json(made), by=jobs.system())
    left = jobs.driver(generation=2).leftovers()
    if left:
        broken(f"Another process has aborted the checkpoint, and {sorted(left)} are still open.")
    jobs.shows(when="another process has aborted")


@promise
def committables_survive_json(jobs: Jobs) -> None:
    """They are stored as JSON: a tuple comes back as a list, and a number as a key comes back as text."""
    made = jobs.driver().prepared([b"a"], [b"b"])
    for one, stored in zip(made, from_json(made), strict=True):
        if one != stored:
            broken(f"JSON turns {one.document.body} into {stored.document.body}.")
        if not one.document.kind or one.document.version < 1:
            broken(f"A document needs a kind, and a version from 1 on: {one.document}.")


@promise
def a_committable_names_its_system(jobs: Jobs) -> None:
    """A process that reaches many systems finds the one that holds the transaction."""
    driver, other = jobs.driver(), jobs.system()
    (made,) = driver.prepared([b"a"])
    found = {system.place(one).id for system in (driver.system, other) for one in (made, *from_json([made]))}
    if found != {other.id()}:
        broken(f"A committable names the systems {sorted(found)}, and was written to {other.id()!r}.")


@promise
def a_closed_sink_has_ended_nothing(jobs: Jobs) -> None:
    """A driver closes its sink on every path. The next generation commits what was completed."""
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    driver.close()
    jobs.shows(when="the sink of a pre-committed checkpoint is closed")
    following = jobs.driver(generation=2)
    following.sweep(*from_json(made))
    following.commits(from_json(made))
    jobs.shows(b"a", when="the next generation has committed")


# -- outcomes


@promise
def the_outcome_after_a_lost_answer_is_committed(jobs: Jobs) -> None:
    """The driver ends before it hears of its commit; another process asks."""
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    driver.commits(made)
    driver.close()
    other = jobs.system()
    outcomes = [other.outcome(one).outcome for one in from_json(made)]
    if outcomes != [Outcome.COMMITTED]:
        broken(f"A committed slot has the outcome {outcomes[0]} in another process: its job would halt, or repeat it.")
    jobs.shows(b"a", when="another process has asked for the outcome")


@promise
def asking_for_an_outcome_changes_nothing(jobs: Jobs) -> None:
    """Nothing is proved of a pre-committed slot: it can still be committed."""
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    for _ in range(2):
        for asked in (driver.system, jobs.system()):
            outcome = asked.outcome(made[0]).outcome
            if outcome is not Outcome.IN_DOUBT:
                broken(f"A pre-committed slot has the outcome {outcome}, and it can still be committed or aborted.")
    jobs.shows(when="the outcome of a pre-committed slot was asked for")
    driver.commits(made)
    jobs.shows(b"a", when="the slot was committed after it was asked for")


@promise
def a_late_commit_of_an_aborted_slot_commits_nothing(jobs: Jobs) -> None:
    """A process that slept may commit what another has aborted. It must hear that this has failed."""
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    driver.aborts(made)
    for system in (driver.system, jobs.system()):
        outcomes = outcomes_of(system, driver.author, made)
        if Outcome.COMMITTED in outcomes:
            broken("A commit of an aborted slot has the outcome committed: its records would be lost in silence.")
    jobs.shows(when="an aborted slot was committed late")


# -- forged documents


def forged(jobs: Jobs, author: Author, own: Committable, foreign: Committable, of: Driver) -> None:
    other = jobs.system()
    theirs = replace(from_json([foreign])[0], slot=1)
    refuses(lambda: other.commit(author, [own, theirs]), HaltedError, "A commit by a forged document")
    refuses(lambda: other.abort(author, [own, theirs]), HaltedError, "An abort by a forged document")
    jobs.shows(when="only a forged document was to be committed")
    of.commits([foreign])


@promise
def a_document_of_another_job_is_refused_and_ends_nothing(jobs: Jobs) -> None:
    """A coordinator may have rights to the transactions of many jobs; the driver that sent the document has not."""
    driver, other = jobs.driver(), jobs.driver(job=f"{jobs.job}-2")
    (own,), (foreign,) = driver.prepared([b"a"]), other.prepared([b"b"])
    forged(jobs, driver.author, own, foreign, other)
    driver.commits([own])
    jobs.shows(b"a", b"b", when="each job has committed its own")


@promise
def a_document_of_another_sink_is_refused_and_ends_nothing(jobs: Jobs) -> None:
    """Of the same job: a checkpoint of one sink may name nothing of the other."""
    driver, other = jobs.driver(name="first"), jobs.driver(name="second")
    (own,), (foreign,) = driver.prepared([b"a"]), other.prepared([b"b"])
    forged(jobs, driver.author, own, foreign, other)
    driver.commits([own])
    jobs.shows(b"a", b"b", when="each sink has committed its own")


@promise
def a_document_of_a_later_generation_is_refused_and_ends_nothing(jobs: Jobs) -> None:
    """A driver that was replaced must not end what its successor writes."""
    driver, other = jobs.driver(), jobs.driver(generation=2)
    (own,), (foreign,) = driver.prepared([b"a"]), other.prepared([b"b"])
    forged(jobs, driver.author, own, foreign, other)
    driver.aborts([own])  # readers may wait for what was written before
    jobs.shows(b"b", when="the later generation has committed its own")


# -- sweeps


@promise
def a_sweep_ends_what_it_does_not_keep(jobs: Jobs) -> None:
    """Losing attempts, and what earlier generations left: open transactions may hold readers back."""
    former = jobs.driver()
    left = former.prepared([b"left"])
    driver = jobs.driver(generation=2)
    driver.write(b"lost")
    made = driver.pre_commit(driver.write(b"a"))
    opened = driver.leftovers(*made)
    ended = driver.sweep(*made)
    if not ended or not all(isinstance(one, str) for one in ended) or set(opened) - set(ended):
        broken(f"A sweep must return the ids of what it ends as text, here of {opened!r}, and returns {ended!r}.")
    if still := driver.leftovers(*made):
        broken(f"After a sweep, {sorted(still)} are open.")
    if Outcome.COMMITTED in outcomes_of(jobs.system(), driver.author, left):
        broken("What a sweep did not keep was committed afterwards.")
    driver.commits(made)
    jobs.shows(b"a", when="a sweep has ended everything else")


@promise
def a_repeated_sweep_changes_nothing(jobs: Jobs) -> None:
    """It runs at every start and after every pre-commit."""
    driver = jobs.driver()
    driver.write(b"lost")
    made = driver.pre_commit(driver.write(b"a"))
    driver.sweep(*made)
    driver.sweep(*made)
    driver.commits(made)
    driver.sweep()
    jobs.shows(b"a", when="it was swept twice before the commit, and once after")


@promise
def a_sweep_spares_what_all_sinks_of_the_job_keep(jobs: Jobs) -> None:
    """One sweep serves all sinks of the job on the system, also for a checkpoint that is not settled yet."""
    first, second = jobs.driver(name="first"), jobs.driver(name="second")
    unsettled = second.prepared([b"a"], checkpoint=1)
    made, also = first.prepared([b"b"], checkpoint=2), second.prepared([b"c"], checkpoint=2)
    first.sweep(*unsettled, *made, *also)
    second.commits(unsettled)
    first.commits(made)
    second.commits(also)
    jobs.shows(b"a", b"b", b"c", when="everything was kept by a sweep")


@promise
def a_sweep_spares_other_jobs(jobs: Jobs) -> None:
    """Also those whose names begin with the name of the job."""
    driver = jobs.driver()
    others = [jobs.driver(job=f"{jobs.job}{end}") for end in ("2", "-2")]
    made = [other.prepared([b"%d" % number]) for number, other in enumerate(others)]
    driver.write(b"lost")
    driver.sweep()
    for other, theirs in zip(others, made, strict=True):
        other.commits(theirs)
    jobs.shows(b"0", b"1", when="another job was swept")


@promise
def a_sweep_spares_a_newer_generation(jobs: Jobs) -> None:
    """A driver that was replaced may still sweep once. It may raise FencedError instead."""
    former, driver = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"])
    with suppress(FencedError):
        former.sweep()
    driver.commits(made)
    jobs.shows(b"a", when="a former generation has swept")


# -- claims


@promise
def a_claim_is_read_back_as_it_was_written(jobs: Jobs) -> None:
    """By every process. Before, and for any other job, there is none."""
    driver, other = jobs.driver(), jobs.system()
    driver.finds(None, by=other)
    driver.takes(driver.claim(), seen=None)
    for reader in (driver.system, other, jobs.driver(generation=2).system):
        driver.finds(driver.claim(), by=reader)
    driver.finds(None, by=other, job=f"{jobs.job}-2")
    renewed = replace(driver.claim(completed=7), amendment=2)
    driver.renews(renewed)
    driver.finds(renewed, by=other)


@promise
def a_claim_is_taken_only_in_place_of_the_one_that_was_seen(jobs: Jobs) -> None:
    """Else two drivers with a store each could both own the job."""
    first, second = jobs.driver(), jobs.driver(generation=2)
    first.takes(first.claim(), seen=None)
    first.finds(first.claim(), by=second.system)
    refuses(lambda: second.takes(second.claim(), seen=None), ClaimChangedError, "A claim where there was another one")
    first.finds(first.claim())
    second.takes(second.claim(), seen=first.claim())
    second.finds(second.claim(), by=first.system)
    third = jobs.driver(generation=3)
    refuses(
        lambda: third.takes(third.claim(), seen=first.claim()), ClaimChangedError, "A claim in place of a former one"
    )
    second.finds(second.claim(), by=third.system)


@promise
def a_driver_whose_claim_was_replaced_commits_nothing(jobs: Jobs) -> None:
    """It renews its claim before each commit, and must learn there that it was replaced."""
    first, second = jobs.driver(), jobs.driver(generation=2)
    first.takes(first.claim(), seen=None)
    first.finds(first.claim(), by=second.system)
    first.renews(first.claim(completed=1))
    first.finds(first.claim(completed=1), by=second.system)
    made = first.prepared([b"a"], checkpoint=2)
    second.takes(second.claim(completed=1), seen=first.claim(completed=1))
    second.finds(second.claim(completed=1))
    refuses(lambda: first.renews(first.claim(completed=2)), FencedError, "A claim in place of a newer driver's")
    second.finds(second.claim(completed=1))
    jobs.shows(when="a driver could not renew its claim")
    second.commits(made)
    jobs.shows(b"a", when="the newer driver has committed")


# -- for people


@promise
def what_people_read_is_text(jobs: Jobs) -> None:
    """Descriptions and ids are printed by commands, also by a process without the sink. They ask no one."""
    driver, other = jobs.driver(), jobs.system()
    made = driver.prepared([b"a"])
    for system in (driver.system, other):
        described = system.describe(from_json(made)[0])
        if not isinstance(described, str) or not described:
            broken(f"A committable is described as {described!r}.")
    if not isinstance(other.id(), str) or other.id() != driver.system.id():
        broken(
            f"A system has the id {driver.system.id()!r} in the driver and {other.id()!r} in another process: two "
            "sinks on it would sweep each other's transactions."
        )
    opened = driver.leftovers()
    if not all(isinstance(one, str) and one for one in opened):
        broken(f"The ids of open transactions are {opened!r}.")


@promise
def an_open_transaction_is_listed_under_the_handle_of_its_committable(jobs: Jobs) -> None:
    """If there is one: so a person finds the transaction of a slot. Listing changes nothing."""
    driver, other = jobs.driver(), jobs.system()
    made = driver.prepared([b"a"])
    listed = [one.handle for one in other.transactions(driver.job)]
    handle = other.handle(from_json(made)[0])
    if handle is not None and handle not in listed:
        broken(f"A pre-committed slot has the handle {handle}, and the open transactions are {listed}.")
    driver.commits(made)
    jobs.shows(b"a", when="the slot was committed after its transaction was listed")


@promise
def a_sink_names_the_same_destinations_in_every_process(jobs: Jobs) -> None:
    """They are compared with the inputs of the job, so that it does not read what it writes."""
    first, second = jobs.driver().sink.writes(), jobs.driver(generation=2).sink.writes()
    if not first or set(first) != set(second):
        broken(f"The destinations are {sorted(map(str, first))} and then {sorted(map(str, second))}.")
