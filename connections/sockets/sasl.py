"""PLAIN (RFC 4616) and SCRAM (RFC 5802), as Kafka uses them."""

import base64
import hmac
import secrets
from collections.abc import Generator
from typing import TypeAlias

from onceward.connections.sockets.encoding import GarbledError

__all__ = ["Exchange", "RefusedError", "exchange"]

Exchange: TypeAlias = Generator[bytes, bytes, None]
"""Yields what to send, gets what the broker answers, and returns when the broker has proved what it must."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS = range(4096, 1_000_001)
"""RFC 7677 demands 4,096 at least. A peer that asks for endless work is no broker."""


class RefusedError(Exception):
    """One side refused the other's credentials."""


def exchange(mechanism: str, user: str, password: str) -> Exchange:
    if mechanism == "PLAIN":
        return _plain(user, password)
    return _scram(_HASHES[mechanism], user, password, secrets.token_hex(16))


def _plain(user: str, password: str) -> Exchange:
    yield b"\0".join((b"", user.encode(), password.encode()))


def _scram(hash_: str, user: str, password: str, nonce: str) -> Exchange:
    name = user.replace("=", "=3D").replace(",", "=2C")
    bare = f"n={name},r={nonce}"
    first = yield f"n,,{bare}".encode()
    said = _attributes(first)
    both, salt, iterations = said.get("r", ""), said.get("s", ""), said.get("i", "")
    if not both.startswith(nonce) or len(both) == len(nonce):
        raise RefusedError("the broker's nonce does not continue ours: it is not the peer that was asked")
    if not iterations.isdecimal() or int(iterations) not in _ITERATIONS:
        raise RefusedError(f"the broker demands {iterations or 'no'} iterations; from {_ITERATIONS.start} on are safe")

    def signed(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, hash_)

    from hashlib import new, pbkdf2_hmac

    salted = pbkdf2_hmac(hash_, password.encode(), _decoded(salt), int(iterations))
    client = signed(salted, b"Client Key")
    unproved = f"c=biws,r={both}"
    text = b",".join((bare.encode(), first, unproved.encode()))
    signature = signed(new(hash_, client).digest(), text)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signature, strict=True)))
    said = _attributes((yield unproved.encode() + b",p=" + proof))
    if "e" in said:
        raise RefusedError(f"the broker refused the credentials: {said['e']}")
    if not hmac.compare_digest(_decoded(said.get("v", "")), signed(signed(salted, b"Server Key"), text)):
        raise RefusedError("the broker does not know the password: it is not the peer that was asked")


def _attributes(message: bytes) -> dict[str, str]:
    return {
        name: value for part in message.decode(errors="replace").split(",") for name, _, value in [part.partition("=")]
    }


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise GarbledError("a value of SCRAM is not in base64") from None
