"""The files of an embedded coordinator, and how commands find it."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.listen import LONGEST_SOCKET_PATH, scratch_for_sockets
from onceward.coordinator.store.private import make_private_directory, require_private_directory

__all__ = ["STATE_DIR_VARIABLE", "StateDirectory", "state_directory"]

STATE_DIR_VARIABLE = "ONCEWARD_STATE_DIR"

_DEFAULT = ".onceward"
_STORE = "store.db"


def state_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The given directory, else ``$ONCEWARD_STATE_DIR``, else ``./.onceward``."""
    return Path(given if given is not None else os.environ.get(STATE_DIR_VARIABLE) or _DEFAULT).absolute()


class StateDirectory:
    """Paths below one state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store_url = f"sqlite:///{path / _STORE}"
        self._address_file = path / "coordinator.address"
        self._sockets = path / "socket"
        self._scratch: Path | None = None

    @property
    def has_store(self) -> bool:
        return (self.path / _STORE).exists()

    def socket(self) -> Path:
        """A path for the Unix socket, in a directory that only this user may enter: gRPC makes the socket with the mode
        that the umask leaves. It is elsewhere if the path would be too long."""
        path = self._sockets / "coordinator.sock"
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            self._scratch = Path(tempfile.mkdtemp(prefix="onceward-", dir=scratch_for_sockets()))
            path = self._scratch / "coordinator.sock"
        else:
            make_private_directory(self._sockets)
            self._sockets.chmod(0o700)
        # Left by a killed process. This process holds the store's lock, so no other listens there.
        path.unlink(missing_ok=True)
        return path

    def publish(self, address: str) -> None:
        """Write the address file, so that commands find the coordinator. The file is never seen incomplete."""
        descriptor, fresh = tempfile.mkstemp(dir=self.path)
        os.fchmod(descriptor, 0o600)  # the umask may have taken too much
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(address + "\n")
        os.replace(fresh, self._address_file)

    def published(self) -> str:
        """The published address. Raises ConfigurationError when there is none, StoreUnusableError when another user
        could have written it. The coordinator may be gone nevertheless."""
        try:
            require_private_directory(self.path)
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
            (self._sockets / "coordinator.sock").unlink(missing_ok=True)
            self._sockets.rmdir()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
