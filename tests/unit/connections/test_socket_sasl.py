"""PLAIN and SCRAM, by the examples of their standards, and against peers that do not know the password."""

import pytest

from onceward.connections.sockets.encoding import GarbledError
from onceward.connections.sockets.sasl import RefusedError, _scram, exchange

# RFC 7677, section 3
_NONCE = "rOprNGfwEbeRWgbNEkqO"
_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
_PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
_SIGNED = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_plain_sends_name_and_password_at_once() -> None:
    steps = exchange("PLAIN", "alice", "secret")
    assert next(steps) == b"\0alice\0secret"
    with pytest.raises(StopIteration):
        steps.send(b"")


def test_scram_computes_the_example_of_its_standard() -> None:
    steps = _scram("sha256", "user", "pencil", _NONCE)
    assert next(steps) == b"n,,n=user,r=" + _NONCE.encode()
    assert steps.send(_FIRST) == _PROOF
    with pytest.raises(StopIteration):
        steps.send(_SIGNED)


def test_a_name_with_the_separators_is_escaped() -> None:
    assert next(exchange("SCRAM-SHA-512", "a,b=c", "p")).startswith(b"n,,n=a=2Cb=3Dc,r=")


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"], "nonce"),
        ([b"r=" + _NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"], "nonce"),
        ([_FIRST.replace(b"i=4096", b"i=1")], "1 iterations"),
        ([_FIRST.replace(b"i=4096", b"i=99999999999")], "99999999999 iterations"),
        ([_FIRST.replace(b",i=4096", b"")], "no iterations"),
        ([_FIRST, b"v=" + _SIGNED[2:].replace(b"6", b"7")], "does not know the password"),
        ([_FIRST, b""], "does not know the password"),
        ([_FIRST, b"e=invalid-proof"], "refused the credentials: invalid-proof"),
    ],
)
def test_a_peer_that_does_not_know_the_password_is_refused(answers: list[bytes], why: str) -> None:
    steps = _scram("sha256", "user", "pencil", _NONCE)
    next(steps)
    for answer in answers[:-1]:
        steps.send(answer)
    with pytest.raises(RefusedError, match=why):
        steps.send(answers[-1])


def test_a_value_that_is_not_base64_is_refused() -> None:
    steps = _scram("sha256", "user", "pencil", _NONCE)
    next(steps)
    with pytest.raises(GarbledError, match="base64"):
        steps.send(_FIRST.replace(b"W22Z", b"?"))
