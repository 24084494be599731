"""A connection hands each answer to its request, whatever the pieces that arrive, and refuses what is no answer."""

import socket
import struct
from collections.abc import Iterator

import pytest

from onceward.connections.sockets.connection import Connection
from onceward.connections.sockets.encoding import Decoder, GarbledError
from onceward.connections.sockets.requests import Api, Content, Request, UnspokenError


class Question(Request):
    api = Api.LIST_OFFSETS

    def __init__(self, text: bytes = b"?") -> None:
        self.text = text
        self.heard: list[bytes] = []
        self.lost_by: list[str] = []

    def encode(self, version: int, *, flexible: bool) -> Content:
        return [self.text]

    def answered(self, version: int, answer: Decoder) -> None:
        if (content := answer.raw(len(answer.view) - answer.at)) == b"garbled":
            raise GarbledError("as the test wants")
        self.heard.append(content)

    def lost(self, why: str) -> None:
        self.lost_by.append(why)


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    made = Connection(ours, client_id="test", largest=1000)
    made.offered = {Api.LIST_OFFSETS: (2, 5)}
    yield made, theirs
    made.close("the end")
    theirs.close()


def answer(number: int, content: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(content), number) + content


def test_a_request_has_its_length_version_number_and_client(pair: tuple[Connection, socket.socket]) -> None:
    made, theirs = pair
    made.send(Question(b"body"))
    head = struct.pack(">hhih", Api.LIST_OFFSETS, 5, 1, 4) + b"test"
    assert theirs.recv(100) == struct.pack(">i", len(head) + 4) + head + b"body"


def test_answers_in_pieces_of_any_size_reach_their_requests_in_order(pair: tuple[Connection, socket.socket]) -> None:
    made, theirs = pair
    first, second = Question(), Question()
    made.send(first)
    made.send(second)
    whole = 0
    for byte in answer(1, b"one") + answer(2, b"two"):
        theirs.send(bytes([byte]))
        whole += made.receive()
    assert (whole, first.heard, second.heard, made.in_flight) == (2, [b"one"], [b"two"], 0)


def test_one_answer_is_received_at_a_time(pair: tuple[Connection, socket.socket]) -> None:
    made, theirs = pair
    first, second = Question(), Question()
    made.send(first)
    made.send(second)
    theirs.send(answer(1, b"one") + answer(2, b"two"))
    assert made.receive()
    assert (first.heard, second.heard) == ([b"one"], [])
    assert made.receive()
    assert not made.receive()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (struct.pack(">i", 1001), "1001 bytes; up to 1000"),
        (struct.pack(">i", -1), "-1 bytes"),
        (answer(7, b""), "the answer of request 7 came for request 1"),
        (answer(1, b"garbled"), "LIST_OFFSETS 5 cannot be read: as the test wants"),
    ],
)
def test_what_is_no_answer_is_refused(pair: tuple[Connection, socket.socket], content: bytes, why: str) -> None:
    made, theirs = pair
    made.send(question := Question())
    theirs.send(content)
    with pytest.raises(GarbledError, match=why):
        made.receive()
    made.close("it cannot be used")
    assert (len(question.lost_by), question.heard) == (1, [])


def test_an_answer_to_nothing_is_refused(pair: tuple[Connection, socket.socket]) -> None:
    made, theirs = pair
    theirs.send(answer(1, b""))
    with pytest.raises(GarbledError, match="to nothing"):
        made.receive()


def test_a_lost_connection_is_an_error_and_its_requests_hear_of_it(pair: tuple[Connection, socket.socket]) -> None:
    made, theirs = pair
    made.send(question := Question())
    theirs.close()
    with pytest.raises(OSError, match=r"closed the connection|reset"):
        made.receive()
    made.close("it is lost")
    assert question.lost_by == ["it is lost"]


def test_a_request_that_the_broker_does_not_take_is_not_sent(pair: tuple[Connection, socket.socket]) -> None:
    made, _ = pair
    made.offered = {Api.LIST_OFFSETS: (20, 30)}
    with pytest.raises(UnspokenError, match="versions 20 to 30"):
        made.send(Question())
    assert made.in_flight == 0


def test_a_request_larger_than_the_socket_takes_is_sent_as_it_empties(pair: tuple[Connection, socket.socket]) -> None:
    made, theirs = pair
    body = bytes(range(256)) * 20_000
    made.send(Question(body))
    assert made.unsent
    got = b""
    while len(got) < len(body):
        got += theirs.recv(1 << 20)
        made.flush()
    assert got.endswith(body)
