"""Who may do what to which jobs, as a rights file says it (docs/how-to/rights.md). Pure."""

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from onceward.protocol.values import Name

__all__ = [
    "EVERYBODY",
    "KEYS",
    "MAX_TOKENS",
    "Credentials",
    "InvalidRightsError",
    "Peer",
    "Right",
    "Rights",
    "digest_of",
    "parse_rights",
]

MAX_TOKENS = 1000
"""In one file: a call's token is compared with all of them."""

_TOKEN = re.compile(r"sha256:([0-9a-f]{64})")
_PATTERN = re.compile(r"(?P<begin>[a-z0-9_-]*)(?P<any>\*?)(?P<end>[a-z0-9_-]*)")
_DNS = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")


class Right(StrEnum):
    """What a peer may do to a job. Each of the last three includes the first."""

    VIEW = "view"
    """See it in listings."""
    DRIVE = "drive"
    """Be its driver, and so replace its driver."""
    OPERATE = "operate"
    """Request checkpoints and savepoints, stop, cancel, restore and forget it."""
    OVERRIDE = "override"
    """Put a person's word in the place of a guard: takeover, adoption, a decision against or without evidence, records
    given up."""


KEYS = ("certificates", "tokens", *(right.value for right in Right))
"""Of one peer's table."""


class InvalidRightsError(ValueError):
    """A rights file that cannot be used. ``problems`` lists everything that is wrong with it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """What a peer has proved: the names in its certificate, and that it knows a token."""

    uris: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    """DNS names, in lower case."""
    token: bytes | None = None
    """The SHA-256 of the token; the token itself goes no further."""


@dataclass(frozen=True, slots=True)
class _Jobs:
    """A pattern: a job's name, or a beginning and an end with anything between them."""

    begin: str
    end: str
    exact: bool

    def match(self, job: str) -> bool:
        if self.exact:
            return job == self.begin
        return len(job) >= len(self.begin) + len(self.end) and job.startswith(self.begin) and job.endswith(self.end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A peer, or several whose proofs one call carries."""

    name: str
    jobs: Mapping[Right, tuple[_Jobs, ...]]
    proved: tuple[str, ...] = ()
    """The names of several."""

    @property
    def names(self) -> tuple[str, ...]:
        """Each of them has bounds of its own."""
        return self.proved or (self.name,)

    def may(self, right: Right, job: str) -> bool:
        return any(pattern.match(job) for pattern in self.jobs[right])

    def may_somewhere(self, right: Right) -> bool:
        return bool(self.jobs[right])

    def may_everywhere(self, right: Right) -> bool:
        return any(not (pattern.exact or pattern.begin or pattern.end) for pattern in self.jobs[right])


EVERYBODY = Peer(name="everybody", jobs={right: (_Jobs("", "", exact=False),) for right in Right})
"""Every client of a coordinator without a rights file."""


class Rights:
    """The peers of one file."""

    def __init__(self, peers: Mapping[str, Peer], certificates: Mapping[str, str], tokens: Mapping[bytes, str]) -> None:
        self._peers = peers
        self._certificates = certificates
        self._tokens = tokens

    @property
    def names_certificates(self) -> bool:
        return bool(self._certificates)

    def __len__(self) -> int:
        return len(self._peers)

    def peer(self, credentials: Credentials) -> Peer | None:
        """Who has these credentials: all peers of which it proves one. None if it proves nothing of this file, or has a
        token that is not in the file: whatever else it proves, something is wrong with it."""
        names = {self._certificates[one] for one in self._named(credentials) if one in self._certificates}
        if credentials.token is not None:
            owner = self._owner(credentials.token)
            if owner is None:
                return None
            names.add(owner)
        if len(names) > 1:
            return self._together(sorted(names))
        return self._peers[names.pop()] if names else None

    def _named(self, credentials: Credentials) -> Iterator[str]:
        """The names as the file has them. URIs have a colon, DNS names none: neither passes for the other."""
        yield from (uri for uri in credentials.uris if ":" in uri)
        yield from (name for name in credentials.names if ":" not in name)

    def _owner(self, token: bytes) -> str | None:
        """Compares with all tokens, each in constant time, so that the time says nothing about them."""
        found = None
        for known, name in self._tokens.items():
            if hmac.compare_digest(known, token):
                found = name
        return found

    def _together(self, names: list[str]) -> Peer:
        peers = [self._peers[name] for name in names]
        jobs = {right: tuple(pattern for peer in peers for pattern in peer.jobs[right]) for right in Right}
        return Peer(name=" and ".join(names), jobs=jobs, proved=tuple(names))


def digest_of(token: str) -> bytes:
    """What a rights file has of a token. A fast hash is enough, because tokens are random and have 256 bits: none
    is found by trying."""
    return hashlib.sha256(token.encode()).digest()


def parse_rights(text: str) -> Rights:
    """Return the rights that a file of this content gives. Raises InvalidRightsError, which repeats no token, should a
    file have one instead of its hash."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRightsError([f"it is not TOML: {error}"]) from None
    tables = content.pop("peers", None)
    problems = [f"{key}: unknown, only tables [peers.NAME] belong here" for key in content]
    if not isinstance(tables, dict) or not tables:
        raise InvalidRightsError([*problems, "there is no table [peers.NAME]"])
    peers: dict[str, Peer] = {}
    certificates: dict[str, str] = {}
    tokens: dict[bytes, str] = {}
    for name, table in tables.items():
        reading = _Table(name, table)
        peers[name] = Peer(name=name, jobs=reading.jobs())
        reading.own(certificates, reading.certificates(), "certificate")
        reading.own(tokens, reading.tokens(), "token")
        problems += [f"[peers.{name}] {problem}" for problem in reading.problems]
    if len(tokens) > MAX_TOKENS:
        problems.append(f"{len(tokens)} tokens, at most {MAX_TOKENS}: use certificates for more peers")
    if problems:
        raise InvalidRightsError(problems)
    return Rights(peers, certificates, tokens)


class _Table:
    """One peer's table, and what is wrong with it."""

    def __init__(self, name: str, table: Any) -> None:
        self.problems: list[str] = []
        self._name = name
        self._table: dict[str, Any] = table if isinstance(table, dict) else {}
        try:
            Name(name)
        except ValueError as error:
            self.problems.append(str(error))
        if not isinstance(table, dict):
            self.problems.append("must be a table")
        elif unknown := sorted(table.keys() - set(KEYS)):
            self.problems.append(f"unknown: {', '.join(unknown)}; known are {', '.join(KEYS)}")
        elif not table.get("certificates") and not table.get("tokens"):
            self.problems.append("has neither certificates nor tokens, so no client is this peer")

    def jobs(self) -> Mapping[Right, tuple[_Jobs, ...]]:
        found = {right: tuple(self._patterns(right)) for right in Right}
        found[Right.VIEW] = tuple(dict.fromkeys(pattern for right in Right for pattern in found[right]))
        return found

    def certificates(self) -> Iterator[str]:
        for text in self._texts("certificates"):
            if ":" in text and _URI.fullmatch(text):
                yield text
            elif _DNS.fullmatch(text):
                yield text.lower()
            else:
                self.problems.append(
                    f"certificates: {text!r} is neither a URI nor a DNS name; patterns are not allowed here"
                )

    def tokens(self) -> Iterator[bytes]:
        for text in self._texts("tokens"):
            match = _TOKEN.fullmatch(text)
            if match is None:
                self.problems.append("tokens: each is sha256: and 64 hexadecimal digits, as onceward token prints it")
            else:
                yield bytes.fromhex(match[1])

    def own(self, owners: dict[Any, str], proofs: Iterable[Any], what: str) -> None:
        for proof in proofs:
            owner = owners.setdefault(proof, self._name)
            if owner != self._name:
                self.problems.append(f"has a {what} that belongs to [peers.{owner}], too; each has one owner")

    def _patterns(self, right: Right) -> Iterator[_Jobs]:
        for text in self._texts(right.value):
            match = _PATTERN.fullmatch(text)
            if match is None or not text:
                self.problems.append(f"{right.value}: {text!r} is no job's name, in which one * stands for anything")
            else:
                yield _Jobs(match["begin"], match["end"], exact=not match["any"])

    def _texts(self, key: str) -> list[str]:
        values = self._table.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.problems.append(f"{key}: must be a list of texts")
            return []
        return values
