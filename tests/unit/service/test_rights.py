"""What a rights file says: its form, who a peer is, and which jobs a pattern means."""

import os
import tomllib
from pathlib import Path

import pytest

from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.needs import NEEDS
from onceward.coordinator.service.rights import (
    EVERYBODY,
    KEYS,
    MAX_TOKENS,
    Credentials,
    InvalidRightsError,
    Right,
    Rights,
    digest_of,
    parse_rights,
)
from onceward.coordinator.service.rights_file import RightsFile
from onceward.wire.v1 import operators_pb2, participants_pb2

TOKEN = "a-token-that-only-this-test-knows-0123456789"
ORDERS = 'certificates = ["spiffe://example.org/orders"]'


def hashed(token: str = TOKEN) -> str:
    return f"sha256:{digest_of(token).hex()}"


def rights(text: str) -> Rights:
    return parse_rights(text)


def problems(text: str) -> str:
    with pytest.raises(InvalidRightsError) as raised:
        parse_rights(text)
    return "\n".join(raised.value.problems)


@pytest.mark.parametrize(
    ("pattern", "meant", "others"),
    [
        ("orders", ["orders"], ["orders-eur", "order", "xorders"]),
        ("payments-*", ["payments-", "payments-eur"], ["payments", "my-payments-eur"]),
        ("*-eur", ["orders-eur", "-eur"], ["eur", "orders-eur2"]),
        ("a*b", ["ab", "a-b"], ["a", "b", "abc"]),
        ("aa*aa", ["aaaa", "aaxaa"], ["aa", "aaa"]),
        ("*", ["a", "orders"], []),
    ],
)
def test_a_pattern_means_these_jobs_and_no_others(pattern: str, meant: list[str], others: list[str]) -> None:
    peer = rights(f'[peers.p]\n{ORDERS}\ndrive = ["{pattern}"]').peer(
        Credentials(uris=frozenset({"spiffe://example.org/orders"}))
    )
    assert peer is not None
    assert [job for job in meant if not peer.may(Right.DRIVE, job)] == []
    assert [job for job in others if peer.may(Right.DRIVE, job)] == []


def test_each_right_includes_only_the_view_of_its_jobs() -> None:
    for right in (Right.DRIVE, Right.OPERATE, Right.OVERRIDE):
        peer = rights(f'[peers.p]\n{ORDERS}\n{right} = ["orders"]').peer(
            Credentials(uris=frozenset({"spiffe://example.org/orders"}))
        )
        assert peer is not None
        assert {one for one in Right if peer.may(one, "orders")} == {right, Right.VIEW}
        assert not any(peer.may(one, "other") for one in Right)
        assert {one for one in Right if peer.may_somewhere(one)} == {right, Right.VIEW}


def test_a_peer_is_known_by_a_uri_a_dns_name_or_a_token_of_its_own_kind() -> None:
    known = rights(
        f'[peers.uri]\ncertificates = ["spiffe://example.org/a"]\n'
        f'[peers.dns]\ncertificates = ["Orders.example.org"]\n[peers.token]\ntokens = ["{hashed()}"]'
    )

    def name(**credentials: object) -> str | None:
        peer = known.peer(Credentials(**credentials))  # type: ignore[arg-type]
        return None if peer is None else peer.name

    assert name(uris=frozenset({"spiffe://example.org/a"})) == "uri"
    assert name(names=frozenset({"orders.example.org"})) == "dns"
    assert name(token=digest_of(TOKEN)) == "token"
    assert name(names=frozenset({"spiffe://example.org/a"})) is None, "a DNS name that looks like a URI"
    assert name(uris=frozenset({"orders.example.org"})) is None, "a URI that looks like a DNS name"
    assert name(uris=frozenset({"SPIFFE://example.org/a"})) is None
    assert name() is None


def test_proofs_of_several_peers_give_the_rights_of_all_and_a_wrong_token_takes_them() -> None:
    known = rights(
        f'[peers.a]\n{ORDERS}\ndrive = ["orders"]\n[peers.b]\ntokens = ["{hashed()}"]\noperate = ["payments"]'
    )
    certificate = frozenset({"spiffe://example.org/orders"})
    both = known.peer(Credentials(uris=certificate, token=digest_of(TOKEN)))
    assert both is not None
    assert both.name == "a and b"
    assert both.may(Right.DRIVE, "orders")
    assert both.may(Right.OPERATE, "payments")
    assert not both.may(Right.OPERATE, "orders")
    assert known.peer(Credentials(uris=certificate, token=digest_of("another"))) is None


def test_everybody_may_do_everything() -> None:
    assert all(EVERYBODY.may(right, "orders") and EVERYBODY.may_everywhere(right) for right in Right)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"there is no table [peers.NAME]"),
        ("[peers]", r"there is no table [peers.NAME]"),
        ("peers = 3", r"there is no table [peers.NAME]"),
        ("[peers.p", "it is not TOML"),
        (f"[peer.p]\n{ORDERS}", "peer: unknown"),
        (f'[peers.P]\n{ORDERS}\nview = ["*"]', "'P' is not a valid Name"),
        ("[peers.p]\nview = ['*']", "neither certificates nor tokens"),
        (f"[peers.p]\n{ORDERS}\nadmin = ['*']", "unknown: admin; known are certificates, tokens, view"),
        (f"[peers.p]\n{ORDERS}\nview = '*'", "view: must be a list of texts"),
        (f"[peers.p]\n{ORDERS}\nview = [3]", "view: must be a list of texts"),
        (f"[peers.p]\n{ORDERS}\ndrive = ['a*b*']", "drive: 'a*b*' is no job's name"),
        (f"[peers.p]\n{ORDERS}\ndrive = ['']", "drive: '' is no job's name"),
        (f"[peers.p]\n{ORDERS}\ndrive = ['.*']", "drive: '.*' is no job's name"),
        ("[peers.p]\ncertificates = ['*.example.org']", "patterns are not allowed here"),
        ("[peers.p]\ncertificates = ['a name']", "neither a URI nor a DNS name"),
        ("[peers.p]\nx = 3\ncertificates = ['a']\n[peers.q]\ncertificates = ['A']", "belongs to [peers.p], too"),
        ("peers.p = 3", "must be a table"),
    ],
)
def test_everything_that_is_wrong_with_a_file_is_named(text: str, problem: str) -> None:
    assert problem in problems(text)


def test_a_token_in_the_place_of_its_hash_is_refused_and_not_repeated() -> None:
    said = problems(f'[peers.p]\ntokens = ["{TOKEN}"]')
    assert "sha256: and 64 hexadecimal digits" in said
    assert TOKEN not in said


def test_a_file_has_a_bounded_number_of_tokens() -> None:
    listed = ",".join(f'"{hashed(str(number))}"' for number in range(MAX_TOKENS + 1))
    assert f"at most {MAX_TOKENS}" in problems(f"[peers.p]\ntokens = [{listed}]")


def test_every_method_has_a_right_and_no_right_is_for_a_method_that_is_not_there() -> None:
    services = [
        service for file in (participants_pb2, operators_pb2) for service in file.DESCRIPTOR.services_by_name.values()
    ]
    names = [method.name for service in services for method in service.methods]
    assert len(names) == len(set(names))
    assert set(names) | {"ServerReflectionInfo"} == NEEDS.keys()


def test_every_request_names_its_job_in_the_same_field() -> None:
    """The job is read before the rest of the request."""
    for file in (participants_pb2, operators_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                field = method.input_type.fields_by_name.get("job")
                if method.name in ("ListJobs", "DescribeCoordinator"):
                    assert field is None
                    assert all(one.number != 1 or one.type != one.TYPE_STRING for one in method.input_type.fields)
                else:
                    assert (field.number, field.type) == (1, field.TYPE_STRING), method.name


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.unlink(missing_ok=True)
    file.write_text(text)
    file.chmod(mode)


ONE = f'[peers.p]\n{ORDERS}\ndrive = ["orders"]'
OTHER = f'[peers.p]\n{ORDERS}\ndrive = ["payments"]'


def test_a_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "rights.toml", Clock()
    write(file, ONE)
    found = RightsFile(file, certificates=True, clock=clock)
    first = found.rights()
    for text, reason in (
        ("[peers.p", "it is not TOML"),
        (ONE.replace("drive", "dive"), "unknown: dive"),
        (None, "No such file"),
    ):
        write(file, text) if text is not None else file.unlink()
        clock.now += 1
        assert found.rights() is first
        assert reason in caplog.text
        assert "the old rights stay in force" in caplog.text
        said = len(caplog.records)
        clock.now += 1
        assert found.rights() is first
        assert len(caplog.records) == said, "once for each change"
    write(file, OTHER)
    assert found.rights() is first, "it is looked at once in a second"
    clock.now += 1
    peer = found.rights().peer(Credentials(uris=frozenset({"spiffe://example.org/orders"})))
    assert peer is not None
    assert (peer.may(Right.DRIVE, "orders"), peer.may(Right.DRIVE, "payments")) == (False, True)


@pytest.mark.parametrize(
    ("text", "mode", "certificates", "problem"),
    [
        ("[peers.p", 0o600, True, "it is not TOML"),
        (ONE, 0o622, True, "other users may write it"),
        (ONE, 0o660, True, "other users may write it"),
        (ONE, 0o600, False, "it names certificates, and no client shows one"),
        (ONE + "\n#" * 600_000, 0o600, True, "larger than"),
    ],
)
def test_a_file_that_cannot_be_used_keeps_a_coordinator_from_starting(
    tmp_path: Path, text: str, mode: int, certificates: bool, problem: str
) -> None:
    file = tmp_path / "rights.toml"
    write(file, text, mode)
    with pytest.raises(ConfigurationError, match="Nothing was started") as raised:
        RightsFile(file, certificates=certificates)
    assert problem in str(raised.value)


def test_a_file_that_is_not_there_or_not_text_keeps_a_coordinator_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        RightsFile(tmp_path / "none", certificates=True)
    (tmp_path / "binary").write_bytes(b"\xff")
    os.chmod(tmp_path / "binary", 0o600)
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        RightsFile(tmp_path / "binary", certificates=True)


def test_the_keys_are_those_that_are_read() -> None:
    table = {key: ["x"] for key in KEYS}
    table["tokens"] = [hashed()]
    lines = "\n".join(f"{key} = {value}" for key, value in table.items())
    assert tomllib.loads(lines)
    assert len(parse_rights(f"[peers.p]\n{lines}")) == 1
