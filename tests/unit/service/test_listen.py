"""Addresses to listen on."""

import pytest

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.service.listen import parse_listen


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:7878", "127.0.0.1:7878"),
        ("127.8.9.1:1", "127.8.9.1:1"),
        ("localhost:0", "localhost:0"),
        ("localhost:65535", "localhost:65535"),
        ("[::1]:7878", "[::1]:7878"),
    ],
)
def test_loopback_addresses_are_taken(text: str, target: str) -> None:
    assert parse_listen(text).target == target


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1", "localhost.example.org:1"])
def test_other_addresses_need_the_flag(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--insecure-listen-anywhere"):
        parse_listen(text)
    assert parse_listen(text, anywhere=True).target == text


@pytest.mark.parametrize("text", ["", "7878", "localhost", "::1:7878", "[::1]", "host:65536", ":1", "a b:c"])
def test_an_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="for example"):
        parse_listen(text, anywhere=True)
