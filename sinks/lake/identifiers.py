"""Names of what this sink writes beside a table's own files."""

import re
import secrets
from dataclasses import dataclass

__all__ = ["CLAIMS", "StagedName", "app_id", "data_path", "staged_folder"]

# Neither readers of tables nor what deletes their unused files look into a folder whose name begins with an underscore.
CLAIMS = "_onceward/claims"
_STAGED = "_onceward/staged"

_NAME = r"[a-z0-9][a-z0-9_-]{0,62}"
_FORM = re.compile(
    rf"part-onceward-(?P<job>{_NAME})\.(?P<sink>{_NAME})\.(?P<generation>[1-9][0-9]*)\.(?P<checkpoint>[0-9]+)"
    r"\.(?P<slot>[0-9]+)\.(?P<attempt>[0-9]+)-(?P<token>[0-9a-f]{16})\.parquet"
)


@dataclass(frozen=True, kw_only=True)
class StagedName:
    """The name of a data file: it says who wrote it, and no two files share one."""

    job: str
    sink: str
    generation: int
    checkpoint: int
    slot: int
    attempt: int
    token: str

    @classmethod
    def new(cls, *, job: str, sink: str, generation: int, checkpoint: int, slot: int, attempt: int) -> "StagedName":
        return cls(
            job=job,
            sink=sink,
            generation=generation,
            checkpoint=checkpoint,
            slot=slot,
            attempt=attempt,
            token=secrets.token_hex(8),
        )

    @classmethod
    def parse(cls, text: str) -> "StagedName | None":
        """Return the parts of one of our names, or None if ``text`` is not one."""
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        return cls(
            job=match["job"],
            sink=match["sink"],
            generation=int(match["generation"]),
            checkpoint=int(match["checkpoint"]),
            slot=int(match["slot"]),
            attempt=int(match["attempt"]),
            token=match["token"],
        )

    def __str__(self) -> str:
        return (
            f"part-onceward-{self.job}.{self.sink}.{self.generation}.{self.checkpoint}.{self.slot}.{self.attempt}"
            f"-{self.token}.parquet"
        )


def staged_folder(job: str) -> str:
    """Return the folder with a note for each data file of ``job`` that no settled checkpoint has."""
    return f"{_STAGED}/{job}"


def data_path(folder: str, name: str) -> str:
    """Return the path of a data file, relative to its table. ``folder``: of the table's data files; empty for none."""
    return f"{folder}/{name}" if folder else name


def app_id(job: str, sink: str, *, fence: bool = False) -> str:
    """Return the application of a sink's commits in a table's state, or of its fences (``control/transactions.py``)."""
    return f"onceward/{job}/{sink}/fence" if fence else f"onceward/{job}/{sink}"
