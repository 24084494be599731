"""What would make a table's directory unsafe for claims and files."""

import secrets
from collections.abc import Iterator

from onceward.common.errors import OncewardError
from onceward.connections.storage import Storage
from onceward.sinks.lake.identifiers import staged_folder

__all__ = ["NO_JOB", "claim_problems"]

NO_JOB = "doctor"
"""In whose folder ``onceward doctor`` tries it if no job is named."""


def claim_problems(storage: Storage, job: str) -> Iterator[tuple[str, str]]:
    """Try what a claim needs: a file is created only if there is none of its name. Yields message and remedy."""
    probe = f"{staged_folder(job)}/probe.{secrets.token_hex(8)}"
    try:
        twice = storage.create(probe, b""), storage.create(probe, b"")
        storage.delete([probe])
    except OncewardError as error:
        yield f"its directory cannot be written: {error}", "give this user the right to write there"
        return
    if twice != (True, False):
        yield (
            "its storage creates a file a second time instead of refusing it, so two drivers could own the job",
            "put the table on a storage that can create a file only if there is none",
        )
