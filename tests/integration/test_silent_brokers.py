"""A broker that accepts connections and never answers: every call of a source or a sink ends without a result."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from onceward import KafkaCluster, KafkaSource
from onceward.common.errors import CheckpointFailedError, OncewardError
from onceward.connectors.interfaces import JobContext
from onceward.dev.kafka import LocalKafka
from onceward.protocol.values import CheckpointId, Claim, Document, Generation, JobName, Outcome, Settlement
from onceward.sinks.kafka.control import claim_reading, claims, fencing, forgetting
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.executor import producers
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from tests.support.processes import halt
from tests.support.sink_job import QUICK, SinkJob, batch
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = "silenced"
GIVE_UP_S = 10.0
"""Instead of half a minute or a minute, for calls that repeat requests: a request takes 8 s, so each repeats some."""
PATIENT_S = 240.0
"""On a busy machine all calls ended within 27 s. Only a call without a limit takes this long."""


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    with LocalKafka(heap="256m") as kafka:
        yield kafka


def test_every_request_of_source_and_sink_ends_while_the_broker_is_silent(
    broker: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (claim_reading, claims, fencing, forgetting):
        monkeypatch.setattr(module, "PATIENCE_S", GIVE_UP_S)
    monkeypatch.setattr(producers, "_INIT_LIMIT_S", GIVE_UP_S)
    topics = Topics(broker.bootstrap_servers, JOB)
    read, written = topics.create("in"), topics.create("out")
    topics.fill(read, [b"%d" % number for number in range(100)])
    with ExitStack() as stack:
        questions = {**_of_a_source(stack, topics, read), **_of_a_sink(stack, topics, written)}
        for pid in broker.pids.values():
            stack.callback(os.kill, pid, signal.SIGCONT)
            halt(pid)
        answers = _ask(questions)
    # These two retry until their caller gives up.
    assert answers.pop("committer.commit") == []
    assert answers.pop("sink.own.renew_claim") is False
    assert {name: answer for name, answer in answers.items() if not _unknown(answer)} == {}


def _of_a_source(stack: ExitStack, topics: Topics, topic: str) -> Mapping[str, Callable[[], object]]:
    source = KafkaSource(topics.servers, topic)
    source.open(JobContext(job=JobName(JOB), checkpoint_timeout=timedelta(minutes=1)))
    stack.callback(source.close)
    source.preflight()
    plan = source.plan(base := _resolved(source))
    assert plan.records
    reader = source.read()
    assert isinstance(reader, KafkaSplitReader)
    reader = replace(reader, give_up_after=GIVE_UP_S)
    return {
        "source.preflight": source.preflight,
        "source.resolve": source.resolve,
        "source.restore": lambda: source.restore(base),
        "source.plan": lambda: source.plan(base),
        "source.snapshot": lambda: source.snapshot(plan),
        "source.check_replay": lambda: source.check_replay(plan.splits, base),
        "reader": lambda: list(reader(plan.splits[0], frozenset({"value"}))),
    }


def _resolved(source: KafkaSource) -> Document:
    """Resolve the start; a broker that has just started coordinates no groups yet."""
    found: list[Document] = []

    def resolves() -> bool:
        with suppress(CheckpointFailedError):
            found.append(source.resolve())
        return bool(found)

    wait_until(resolves, "the broker coordinates the group")
    return found[0]


def _of_a_sink(stack: ExitStack, topics: Topics, topic: str) -> Mapping[str, Callable[[], object]]:
    """The calls of a sink, each on its own connections, so that none waits for another."""

    def job() -> SinkJob:
        return stack.enter_context(SinkJob(topics.servers, JOB, topic=topic))

    def committer() -> KafkaSystem:
        control = stack.enter_context(closing(ControlPlane(KafkaCluster(topics.servers))))
        control.cluster_id()
        return KafkaSystem(control, clock=QUICK)

    claim = Claim(store_id="s", generation=Generation(1), completed=CheckpointId(0))
    first = job()
    first.take_claim(claim, None)
    prepared = first.prepared(1, [b"a"])
    voted = job()
    vote = voted.write(2, batch(b"b"), slot=1)
    name = first.job
    return {
        "sink.preflight": job().sink.preflight,
        "sink.begin_generation": partial(job().sink.begin_generation, Generation(2)),
        "sink.read_claim": job().read_claim,
        "sink.take_claim": partial(job().take_claim, claim, claim),
        "sink.own.renew_claim": partial(first.own.renew_claim, claim, give_up=lambda: True),
        "sink.pre_commit": partial(voted.pre_commit, 2, [vote]),
        "writer": partial(job().write, 3, batch(b"c"), slot=2),
        "committer.commit": partial(committer().commit, first.author, prepared, give_up=lambda: True),
        "committer.abort": partial(committer().abort, first.author, prepared),
        "committer.outcome": partial(committer().outcome, prepared[0]),
        "committer.leftovers": partial(committer().leftovers, name),
        "committer.transactions": partial(committer().transactions, name),
        "committer.ending": partial(committer().ending, name),
        "committer.sweep": partial(committer().sweep, name),
        "committer.read_claim": partial(committer().read_claim, name, certain=True),
        "committer.take_claim": partial(committer().take_claim, name, claim, [claim]),
        "committer.forget": partial(committer().forget, name, claim),
    }


def _ask(questions: Mapping[str, Callable[[], object]]) -> dict[str, object]:
    """Make all calls at once, each in its own thread. Return what each returned or raised; None if it has not ended."""
    answers: dict[str, object] = dict.fromkeys(questions)

    def ask(name: str) -> None:
        try:
            answers[name] = questions[name]()
        except Exception as error:  # noqa: BLE001 - the test examines it
            answers[name] = error

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in questions]
    deadline = time.monotonic() + PATIENT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)


def _unknown(answer: object) -> bool:
    """Whether the answer is an error of the project, or a settlement in doubt."""
    in_doubt = isinstance(answer, Settlement) and answer.outcome is Outcome.IN_DOUBT
    return in_doubt or isinstance(answer, OncewardError)
