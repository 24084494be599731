"""Listings beside the one connection that writes: they take no time from decisions, and their failure costs no lead."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from onceward.common.printable import log_fields, logger
from onceward.coordinator.store.database import Beside, Database
from onceward.coordinator.store.errors import ListingFailedError, StoreError
from onceward.coordinator.store.listing import Listings
from onceward.coordinator.store.term import Term, require_term

__all__ = ["Reader"]

_log = logger("onceward.store")


class Reader(Listings):
    """Reads a store through a connection of its own, which it makes when it is needed. Not thread-safe.

    It sees what is committed, and nothing may be decided from it. A failure raises ListingFailedError and costs one
    listing: the next one makes another connection.
    """

    def __init__(self, database: Database, term: Term) -> None:
        self._database = database
        self._term = term
        self._beside: Beside | None = None

    def close(self) -> None:
        """Never raises."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.close()

    @contextmanager
    def _reading(self, doing: str) -> Iterator[Connection]:
        try:
            with self._database.translated(doing):
                if self._beside is None:
                    assert self._database.read_beside is not None
                    self._beside = self._database.read_beside()
                with self._beside.connection.begin():
                    # another server may answer at the same address
                    require_term(self._beside.connection, self._term, lock=False)
                    yield self._beside.connection
        except StoreError as error:
            self.close()
            _log.warning("%s", log_fields({"event": "listing_failed", "detail": error}))
            raise ListingFailedError(
                f"The store's connection for listings failed while {doing}. Nothing else did: repeat the call."
            ) from error
