"""The files of an embedded coordinator, and how commands find it."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from onceward.coordinator.errors import ConfigurationError

__all__ = ["STATE_DIR_VARIABLE", "StateDirectory", "state_directory"]

STATE_DIR_VARIABLE = "ONCEWARD_STATE_DIR"

_DEFAULT = ".onceward"
_STORE = "store.db"
_LONGEST_SOCKET_PATH = 100  # the kernel accepts 107 bytes


def state_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The given directory, else ``$ONCEWARD_STATE_DIR``, else ``./.onceward``."""
    return Path(given if given is not None else os.environ.get(STATE_DIR_VARIABLE) or _DEFAULT).absolute()


class StateDirectory:
    """Paths below one state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store_url = f"sqlite:///{path / _STORE}"
        self._address_file = path / "coordinator.address"
        self._scratch: Path | None = None

    @property
    def has_store(self) -> bool:
        return (self.path / _STORE).exists()

    def socket(self) -> Path:
        """A path for the Unix socket: inside the directory, or in a private one if the path would be too long."""
        path = self.path / "coordinator.sock"
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            self._scratch = Path(tempfile.mkdtemp(prefix="onceward-"))
            path = self._scratch / "coordinator.sock"
        # Left by a killed process. This process holds the store's lock, so no other listens there.
        path.unlink(missing_ok=True)
        return path

    def publish(self, address: str) -> None:
        """Write the address file, so that commands find the coordinator. The file is never seen incomplete."""
        fresh = self._address_file.with_name(self._address_file.name + ".new")
        fresh.write_text(address + "\n", encoding="utf-8")
        fresh.replace(self._address_file)

    def published(self) -> str:
        """The published address. Raises ConfigurationError when there is none. The coordinator may be gone
        nevertheless."""
        try:
            return self._address_file.read_text(encoding="utf-8").strip()
        except OSError:
            raise ConfigurationError(
                f"No coordinator is running on {self.path}: there is no address in it. Give --coordinator HOST:PORT "
                f"for a server, or --state-dir (or {STATE_DIR_VARIABLE}) for a job with its own coordinator."
            ) from None

    def clean(self) -> None:
        """Remove the address file and the socket."""
        with contextlib.suppress(OSError):
            self._address_file.unlink(missing_ok=True)
            (self.path / "coordinator.sock").unlink(missing_ok=True)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
