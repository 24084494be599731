"""A loop that is busy with one long request costs no lead, and a long request does not make it busy."""

import asyncio
import threading
import time
from contextlib import ExitStack, closing, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import StoreError
from onceward.coordinator.service import group_commit, methods
from onceward.coordinator.service.documents import Checkers, Vetted
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.server import CoordinatorServer
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.store.opening import open_candidate
from onceward.coordinator.store.postgres import PAUSE_S
from onceward.coordinator.store.store import Store
from onceward.protocol import encoded, events
from onceward.protocol.answers import Grant, Instruction, Trigger, Verdict
from onceward.protocol.committing import Age
from onceward.protocol.durable import Durable
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, Committable, JobName, Outcome, Settlement, Snapshot
from onceward.wire import requests
from onceward.wire.answers import GRANT
from onceward.wire.limits import MAX_MESSAGE_BYTES
from onceward.wire.v1 import participants_pb2 as pb
from tests.support.documents import committable, document
from tests.support.peers import ServedCoordinator
from tests.support.places import postgres_place
from tests.support.scripted import SINK, SOURCE
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

JOB = JobName("orders")
FIRST, NONE = CheckpointId(1), CheckpointId(0)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_busy_loop_costs_no_lead_and_one_that_hangs_does(
    postgres: "LocalPostgres", monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    place = postgres_place(postgres)
    monkeypatch.setattr(group_commit, "_LOOP_HANGS_S", 0.0 if hangs else 600.0)

    async def run() -> None:
        with closing(open_candidate(place.url)) as candidate:
            database = candidate.wait(60.0)
        assert database is not None
        with closing(Store.lead(database, address="a:1")) as store:
            server = CoordinatorServer()
            await server.lead(store)
            with place.raw() as raw:  # the database's own clock, while this loop stands still
                waited = "SELECT clock_timestamp() > now() + interval '1 second' * %s"
                while not raw.exec_driver_sql(waited.replace("%s", str(2 * PAUSE_S))).scalar():
                    time.sleep(0.01)
            assert (store.leads_for > 0) is not hangs
            assert server.coordinator is not None
            with pytest.raises(StoreError) if hangs else nullcontext():
                await server.coordinator.confirm()
            await server.stop()

    asyncio.run(run())


def test_a_long_request_is_decoded_while_other_calls_are_answered(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, began, decode = threading.Event(), threading.Event(), requests.acknowledge

    def decoding(request: pb.AcknowledgeRequest, now: float) -> list[events.Acknowledge]:
        if request.ByteSize() > MAX_MESSAGE_BYTES:
            began.set()
            assert go_on.wait(30), "no other call was answered"
        return decode(request, now)

    monkeypatch.setattr(requests, "acknowledge", decoding)
    settings = CheckpointSettings(interval="1h")
    with connect(coordinator.address, patience="30s") as client, connect(coordinator.address) as other:
        session = client.open_job(JOB, (SOURCE, SINK), settings, None, driver="d1")
        wanted: list[Instruction] = []
        session.start_watch(wanted.append)
        wait_until(lambda: Trigger(checkpoint=FIRST, base=NONE) in wanted, "the first checkpoint is triggered")
        long = Snapshot(positions=document(padding="x" * 2 * MAX_MESSAGE_BYTES))
        answers: list[Any] = []
        acknowledging = threading.Thread(
            target=lambda: answers.extend(session.acknowledge(FIRST, NONE, {SOURCE.name: long, SINK.name: Snapshot()}))
        )
        acknowledging.start()
        assert began.wait(30)
        other.open_job(JobName("payments"), (SOURCE, SINK), settings, None, driver="d2").let_go()
        go_on.set()
        acknowledging.join(30)
        assert {answer.verdict for answer in answers} <= {Verdict.ACCEPTED, Verdict.DUPLICATE}
        assert answers


def test_the_size_of_a_long_request_is_not_asked_for(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message would be written for it, on the loop: that was half of a coordinator's longest step."""
    asked: list[str] = []

    class Parsed:
        def __init__(self, message: Any) -> None:
            self.message = message

        def __getattr__(self, name: str) -> Any:
            if name == "ByteSize":
                asked.append(type(self.message).__name__)
            return getattr(self.message, name)

    parse = methods.parse
    monkeypatch.setattr(methods, "parse", lambda method, data: Parsed(parse(method, data)))
    many = Snapshot(committables=tuple(committable(slot, padding=f"{slot:0100}") for slot in range(1_000)))
    with connect(coordinator.address, patience="30s") as client:
        session = client.open_job(JOB, (SOURCE, SINK), CheckpointSettings(interval="1h"), None, driver="d1")
        wanted: list[Instruction] = []
        session.start_watch(wanted.append)
        wait_until(lambda: Trigger(checkpoint=FIRST, base=NONE) in wanted, "the first checkpoint is triggered")
        answers = session.acknowledge(
            FIRST, NONE, {SOURCE.name: Snapshot(positions=document(offset=1)), SINK.name: many}
        )
        assert {answer.verdict for answer in answers} == {Verdict.ACCEPTED}
        proved = [Settlement(slot=slot, outcome=Outcome.COMMITTED, evidence="x" * 100) for slot in range(1_000)]
        assert session.settle(FIRST, SINK.name, proved).verdict is Verdict.ACCEPTED
    assert asked == []


def test_long_documents_are_checked_and_given_in_a_thread(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[str]] = {"checked": set(), "given": set()}
    check, give = Checkers.vet, GRANT.to_wire

    def checking(self: Checkers, durable: Durable, event: events.Event) -> Vetted:
        if isinstance(event, events.Acknowledge):
            threads["checked"].add(threading.current_thread().name)
        return check(self, durable, event)

    def giving(grant: Grant) -> pb.Grant:
        if grant.completed is not None:
            threads["given"].add(threading.current_thread().name)
        return give(grant)

    monkeypatch.setattr(Checkers, "vet", checking)
    monkeypatch.setattr(GRANT, "to_wire", giving)
    settings = CheckpointSettings(interval="1h")
    many = Snapshot(committables=tuple(committable(slot, padding=f"{slot:0100}") for slot in range(1_000)))
    with connect(coordinator.address, patience="30s") as client:
        session = client.open_job(JOB, (SOURCE, SINK), settings, None, driver="d1")
        wanted: list[Instruction] = []
        session.start_watch(wanted.append)
        wait_until(lambda: Trigger(checkpoint=FIRST, base=NONE) in wanted, "the first checkpoint is triggered")
        session.acknowledge(FIRST, NONE, {SOURCE.name: Snapshot(positions=document(offset=1)), SINK.name: many})
        again = client.open_job(JOB, (SOURCE, SINK), settings, None, driver="d2", takeover=True)
        assert again.grant.completed is not None
        assert again.grant.completed.snapshots[SINK.name] == many
    assert {name.rstrip("_0123456789") for found in threads.values() for name in found} == {"onceward-requests"}


def test_listings_and_skips_decode_no_document_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of the oldest transaction is in the documents of an orphan's unsettled checkpoint."""
    decoded: list[str] = []
    whole = encoded._whole

    def decoding(*given: Any) -> Any:
        decoded.append(threading.current_thread().name)
        return whole(*given)

    monkeypatch.setattr(encoded, "_whole", decoding)
    plugin: Any = lambda _configuration, **_: _Ages()  # noqa: E731
    systems = Systems({SINK.kind: plugin}, {"main": NamedSystem(kind=SINK.kind, configuration="main")})
    settings = CheckpointSettings(interval="1h", orphan_grace="1h")
    many = Snapshot(committables=tuple(committable(slot, padding="x") for slot in range(50)))
    with ExitStack() as stack:
        served = stack.enter_context(ServedCoordinator(tmp_path / "store.db", systems=systems))
        client = stack.enter_context(connect(served.address, patience="30s"))
        session = client.open_job(JOB, (SOURCE, SINK), settings, None, driver="d1")
        wanted: list[Instruction] = []
        session.start_watch(wanted.append)
        wait_until(lambda: Trigger(checkpoint=FIRST, base=NONE) in wanted, "the first checkpoint is triggered")
        session.acknowledge(FIRST, NONE, {SOURCE.name: Snapshot(positions=document(offset=1)), SINK.name: many})
        session.close(events.CloseReason.FAILED)
        people = stack.enter_context(OperatorClient(served.address))
        decoded.clear()
        (row,) = people.jobs()
        for found in (row.oldest_transaction, people.describe(JOB).summary.oldest_transaction):
            assert (found.transaction if found is not None else "") == "t49"
        assert len(decoded) == 50, "once, whatever asks how often"
        skip = people.skip_input(JOB, "orders", 0, 7, "it is deleted", only_look=True)
        assert "no plug-in can move positions of kind test" in skip.answer.detail
        assert len(decoded) == 51
        assert "the loop" not in decoded


class _Ages:
    def age(self, committable: Committable) -> Age:
        assert committable.document.body["padding"] == "x"
        minutes = timedelta(minutes=committable.slot)
        return Age(transaction=f"t{committable.slot}", open_for=minutes, timeout=timedelta(hours=1))

    def close(self) -> None:
        pass


def test_the_time_for_which_transactions_can_be_committed_runs_on_while_a_request_is_decoded() -> None:
    from onceward.coordinator.service.participants import _late

    one = events.Acknowledge(
        now=10.0,
        generation=1,  # type: ignore[arg-type]
        checkpoint=FIRST,
        participant=SINK.name,
        base=NONE,
        snapshot=Snapshot(),
        good_for_s=5.0,
        driver="d",
        phases={},
    )
    late = _late(one, 12.0)
    assert (late.now, late.good_for_s) == (12.0, 3.0)
    assert _late(one, 20.0).good_for_s == 0.0
