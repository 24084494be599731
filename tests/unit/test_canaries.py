"""The search for secrets finds each that is planted."""

import base64
import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.canaries import arguments_of, files_in, found_in

SECRET = "c4n4ryofthem1ne0123456789abcdefghijklmnop"
PLANTS: list[Callable[[str], bytes]] = [
    str.encode,
    lambda secret: f"store_password='{secret}', store_url=".encode(),
    lambda secret: json.dumps({"config": {"sasl.password": secret}}).encode(),
    lambda secret: f"…{secret[-25:]}".encode(),
    lambda secret: f"{secret[:25]}…".encode(),
    lambda secret: f"{secret[:20]}\n{secret[20:]}".encode(),
    lambda secret: secret.encode("utf-16"),
    lambda secret: secret.encode("utf-16-be"),
    lambda secret: rf"\x{secret.encode().hex()}".encode(),
    lambda secret: secret.encode().hex().upper().encode(),
    *(lambda secret, user=user: base64.b64encode(f"\0{user}\0{secret}".encode()) for user in ("a", "al", "ali")),
    *(lambda secret, user=user: base64.urlsafe_b64encode(f"{user}:{secret}:x".encode()) for user in ("a", "al", "ali")),
]


def zipped(content: bytes) -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("log", content)
        return file.getvalue()


@pytest.mark.parametrize("plant", PLANTS)
def test_a_secret_is_found_in_each_form(plant: Callable[[str], bytes]) -> None:
    noise = os.urandom(999)
    left = {"log": noise + plant(SECRET) + noise, "page": noise}
    assert found_in(left, {"password": SECRET, "token": SECRET[::-1]}) == ["password in log"]


def test_a_secret_is_found_in_each_file_but_its_own(tmp_path: Path) -> None:
    places = ["a.log", "state/store.db", "state/.hidden/wal", "secrets/token", "secrets/more/token"]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b"\0" + SECRET.encode())
    (tmp_path / "shipped.zip").write_bytes(zipped(SECRET.encode()))
    found = found_in(files_in(tmp_path, without=tmp_path / "secrets"), {"token": SECRET})
    assert sorted(found) == sorted(f"token in file {place}" for place in [*places[:3], "shipped.zip"])


def test_a_secret_is_found_in_the_arguments_of_a_process() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", waits, f"--token={SECRET}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert found_in({"arguments": arguments_of(process.pid)}, {"token": SECRET}) == ["token in arguments"]
        process.communicate()
    assert arguments_of(process.pid) == b""


@pytest.mark.parametrize("pack", [gzip.compress, zipped, b"\x28\xb5\x2f\xfd".__add__, b"\x04\x22\x4d\x18".__add__])
def test_nothing_compressed_passes_as_searched(pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(AssertionError, match=r"cannot be searched.*event log"):
        found_in({"event log": pack(SECRET.encode())}, {"password": SECRET})


def test_a_secret_that_could_be_found_by_accident_is_refused() -> None:
    with pytest.raises(AssertionError, match="by accident"):
        found_in({"log": b""}, {"password": "short"})
