"""A group of staying tasks as its driver sees it: the tasks are threads that speak over real connections."""

import errno
import os
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from onceward.common.errors import ConfigurationError
from onceward.driver.staying import group as groups
from onceward.driver.staying.credentials import new_credentials
from onceward.driver.staying.group import TaskGroup
from onceward.executor.functions import unusable
from onceward.executor.link import Link, LinkLostError, connect
from tests.support.waiting import wait_until


class Cluster:
    """Instead of Spark: runs each task in a thread until all have ended, or they are killed."""

    def __init__(self) -> None:
        self.context, self.credentials = new_credentials()
        self.address = ("", 0)
        self.started, self.over = threading.Event(), threading.Event()
        self.cancelled = False
        self.links: dict[int, Link] = {}

    def job(self, address: tuple[str, int]) -> None:
        self.address = address
        self.started.set()
        self.over.wait()

    def cancel(self) -> None:
        self.cancelled = True
        self.over.set()

    def task(self, slot: int, *, mark: str | None = None) -> Link:
        """Let the task of a slot come, and begin."""
        self.started.wait()
        link = self.links[slot] = connect(self.address, self.credentials)
        link.send({"hello": slot, "attempt": slot})
        assert link.receive() == {"task": "copy"}
        link.send({"marks": [mark or f"worker-{slot}"]})
        return link


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.over.set()
    for link in made.links.values():
        link.close()


def group_of(cluster: Cluster, slots: int, changed: Callable[[], None] = lambda: None, *, port: int = 0) -> TaskGroup:
    return TaskGroup(
        slots,
        cluster.context,
        cluster.credentials.secret,
        bind=("127.0.0.1", port),
        host="127.0.0.1",
        begin={"task": "copy"},
        job=cluster.job,
        cancel=cluster.cancel,
        changed=changed,
    )


def votes(link: Link, checkpoint: int) -> None:
    order = link.receive()
    assert order["cut"] == checkpoint
    link.send({"ballot": f"ballot-{checkpoint}", "checkpoint": checkpoint, "reached": {"ranges": []}, "open": 0.0})


def ends(cluster: Cluster) -> None:
    for link in cluster.links.values():
        while "end" not in (order := link.receive()):
            assert "flushed" in order
        link.send({"ended": True})
    cluster.over.set()


def test_a_checkpoint_is_cut_when_every_slot_has_voted(cluster: Cluster) -> None:
    group = group_of(cluster, 2)
    first = cluster.task(0)
    assert not group.ready
    second = cluster.task(1)
    wait_until(lambda: group.ready, "both tasks have begun")
    assert group.marks == {"worker-0", "worker-1"}
    group.cut(7, {"committed": {}})
    votes(first, 7)
    wait_until(lambda: not group.broken and group.reports(7) is None, "one vote is not enough")
    votes(second, 7)
    wait_until(lambda: group.reports(7), "both have voted")
    assert [report.ballot for report in group.reports(7) or ()] == ["ballot-7", "ballot-7"]
    threading.Thread(target=ends, args=(cluster,)).start()
    assert group.end()
    assert not cluster.cancelled


def test_votes_to_come_are_there_when_every_slot_has_sent_its_records(cluster: Cluster) -> None:
    """A slot without records has nothing to confirm: its first word is its vote."""
    group = group_of(cluster, 2)
    first, second = cluster.task(0), cluster.task(1)
    wait_until(lambda: group.ready, "both tasks have begun")
    group.cut(7, {})
    assert first.receive()["cut"] == 7
    first.send({"sent": True, "ballot": "coming", "checkpoint": 7, "reached": {}, "open": 0.0})
    wait_until(lambda: not group.broken and group.sent(7) is None, "one slot is not enough")
    votes(second, 7)
    wait_until(lambda: group.sent(7), "both have sent")
    assert [report.ballot for report in group.sent(7) or ()] == ["coming", "ballot-7"]
    assert group.reports(7) is None, "the brokers have not confirmed the records of the first slot"
    first.send({"ballot": "ballot-7", "checkpoint": 7, "reached": {}, "open": 0.0})
    wait_until(lambda: group.reports(7), "both have voted")


def test_every_task_hears_when_all_have_flushed(cluster: Cluster) -> None:
    group = group_of(cluster, 2)
    links = [cluster.task(0), cluster.task(1)]
    wait_until(lambda: group.ready, "both tasks have begun")
    for checkpoint in (7, 8):
        group.cut(checkpoint, {})
        for link in links:
            votes(link, checkpoint)
        assert [link.receive() for link in links] == [{"flushed": checkpoint}] * 2


def test_news_of_the_next_checkpoint_survive_until_its_cut(cluster: Cluster) -> None:
    group = group_of(cluster, 1)
    link = cluster.task(0)
    link.send({"news": True})
    wait_until(lambda: group.news, "news have come")
    group.cut(7, {})
    assert not group.news
    votes(link, 7)
    link.send({"news": True})
    wait_until(lambda: group.news, "the next news have come")
    assert group.reports(7) is not None


def test_an_error_of_the_program_ends_the_group_as_such(cluster: Cluster) -> None:
    group = group_of(cluster, 1)
    wrong = unusable(ConfigurationError("value: is bigint, must be binary"))
    cluster.task(0).send({"failed": "".join(traceback.format_exception(wrong))})
    wait_until(lambda: group.broken, "the group is broken")
    failure = group.failure()
    assert isinstance(failure, ConfigurationError), "which ends the job"
    assert str(failure) == "value: is bigint, must be binary"
    group.end()


def test_a_failed_task_ends_the_group_in_order_and_says_why(cluster: Cluster) -> None:
    group = group_of(cluster, 1)
    cluster.task(0).send({"failed": "Traceback (most recent call last):\nValueError: poison"})
    wait_until(lambda: group.broken, "the failure is known")
    assert "ValueError: poison" in str(group.failure())
    assert group.end(), "the task has aborted its transaction before it said so"
    assert cluster.cancelled, "Spark would start it again"


def test_a_lost_task_breaks_the_group_out_of_order(cluster: Cluster) -> None:
    group = group_of(cluster, 1)
    cluster.task(0).close()
    wait_until(lambda: group.broken, "the loss is noticed")
    assert "slot 0 is lost" in str(group.failure())
    assert not group.end()


def test_a_task_that_spark_starts_again_breaks_the_group_and_is_turned_away(cluster: Cluster) -> None:
    group = group_of(cluster, 1)
    first = cluster.task(0)
    again = connect(cluster.address, cluster.credentials)
    again.send({"hello": 0, "attempt": 1})
    with pytest.raises(LinkLostError):
        again.receive()
    wait_until(lambda: group.broken, "the second attempt is noticed")
    assert "a second time" in str(group.failure())
    assert not group.end()
    first.close()


def test_a_task_that_does_not_end_is_killed_and_may_still_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_END_S", 0.2)
    group = group_of(cluster, 1)
    cluster.task(0)
    wait_until(lambda: group.ready, "the task has begun")
    assert not group.end()
    assert cluster.cancelled


def test_a_job_that_ends_by_itself_breaks_the_group(cluster: Cluster) -> None:
    woken = threading.Event()
    group = group_of(cluster, 1, woken.set)
    cluster.over.set()
    wait_until(lambda: group.broken, "the end is noticed")
    assert woken.wait(60), "the driver's main thread is woken"


def test_a_cut_gives_each_slot_its_own_allowance(cluster: Cluster) -> None:
    group = group_of(cluster, 2)
    links = [cluster.task(slot) for slot in range(2)]
    wait_until(lambda: group.ready, "both tasks have begun")
    group.cut(7, {}, [[3, 4], [5]])
    assert [link.receive()["allowed"] for link in links] == [[3, 4], [5]]
    group.cut(8, {})
    assert not any("allowed" in link.receive() for link in links)


def test_the_next_group_listens_on_the_same_port_at_once() -> None:
    """The driver closes the connections, so its side of them keeps the port."""
    port = 0
    for _ in range(3):
        cluster = Cluster()
        group = group_of(cluster, 1, port=port)
        cluster.task(0)
        wait_until(lambda group=group: group.ready, "the task has begun")  # type: ignore[misc]
        assert port in (0, cluster.address[1])
        port = cluster.address[1]
        cluster.links[0].send({"ended": True})
        cluster.over.set()
        assert group.end()
        cluster.links[0].close()


def test_a_port_that_another_process_has_is_named_with_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1 port {port} .*spark\.onceward\.tasks\.port"):
            group_of(Cluster(), 1, port=port)


def secured(cluster: Cluster) -> ssl.SSLSocket:
    """Connect by TLS, as anybody can, and send one byte."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    peer = context.wrap_socket(socket.create_connection(cluster.address, 30))
    peer.sendall(b"x")
    return peer


def test_connections_that_prove_nothing_keep_no_task_out(cluster: Cluster) -> None:
    group = group_of(cluster, 1)
    cluster.started.wait()
    with ExitStack() as others:
        for _ in range(groups._MOST_UNPROVED + 1):
            others.enter_context(secured(cluster))
        cluster.task(0)
        wait_until(lambda: group.ready, "the task has its place")
        ending = threading.Thread(target=group.end)
        ending.start()
        ends(cluster)
        ending.join()


def test_a_port_that_cannot_accept_for_a_while_accepts_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, refusing = socket.socket.accept, threading.Event()
    refusing.set()

    def accepting(listening: socket.socket) -> Any:
        peer = whole(listening)
        if refusing.is_set():
            peer[0].close()
            refusing.clear()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return peer

    monkeypatch.setattr(socket.socket, "accept", accepting)
    group = group_of(cluster, 1)
    cluster.started.wait()
    with pytest.raises(LinkLostError):
        cluster.task(0).receive()
    cluster.task(0)
    wait_until(lambda: group.ready, "the task has its place")
    ending = threading.Thread(target=group.end)
    ending.start()
    ends(cluster)
    ending.join()
