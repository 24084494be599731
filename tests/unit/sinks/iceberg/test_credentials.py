"""A REST catalogue hands out temporary credentials: they are not asked for, not used, and nowhere to be read."""

import json
import pickle
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from onceward import IcebergSink
from onceward.common.errors import ConfigurationError
from tests.support.object_store import App, Environ, ObjectStore
from tests.support.rest_catalogue import RestCatalogue
from tests.unit.sinks.delta.test_sink import CONTEXT
from tests.unit.sinks.iceberg.tables import NAME, ObjectTable, in_store

HANDED_OUT = {
    "s3.access-key-id": "vended-key",
    "s3.secret-access-key": "vended-secret",
    "s3.session-token": "vended-token",
    "s3.session-token-expires-at-ms": "1",
}


@pytest.fixture
def catalogue(object_store: ObjectStore, tmp_path: Path) -> Iterator[RestCatalogue]:
    warehouse = f"s3://{object_store.bucket}/handed-out/{secrets.token_hex(4)}"
    settings = {**in_store(object_store), "s3.secret-access-key": object_store.secret_key}
    with RestCatalogue(tmp_path, {"warehouse": warehouse, **settings}) as running:
        yield running


def test_what_a_catalogue_hands_out_is_not_asked_for_and_not_used(
    catalogue: RestCatalogue, object_store: ObjectStore
) -> None:
    catalogue.credentials = HANDED_OUT
    used: list[str] = []

    def noting(answer: App, environ: Environ, start_response: Any) -> list[bytes]:
        used.append(environ.get("HTTP_AUTHORIZATION", "") + environ.get("HTTP_X_AMZ_SECURITY_TOKEN", ""))
        return answer(environ, start_response)

    table = ObjectTable(object_store, catalogue.settings)
    with object_store.disturbed(noting), table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        driver.commits(made)
        assert table.values() == [b"a"]
        session = table.sink().connect(CONTEXT)
        shown = [json.dumps(made[0].document.body), repr(pickle.dumps(session.write())), repr(vars(session))]
    assert catalogue.asked == []
    assert len(used) > 10
    assert not [one for one in (*used, *shown) if "vended" in one]


def test_an_error_of_the_storage_shows_nothing_that_a_catalogue_has_handed_out(
    catalogue: RestCatalogue, object_store: ObjectStore
) -> None:
    catalogue.credentials = HANDED_OUT

    def repeating(answer: App, environ: Environ, start_response: Any) -> list[bytes]:
        """As S3 does for a token that it does not accept."""
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return answer(environ, start_response)
        start_response("400 Bad Request", [("Content-Type", "application/xml")])
        said = environ.get("HTTP_AUTHORIZATION", "") + environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
        return [f"<Error><Code>InvalidToken</Code><Message>{said}</Message></Error>".encode()]

    table = ObjectTable(object_store, catalogue.settings)
    with table.jobs() as jobs:
        driver, failures = jobs.driver(), list[str]()
        made, system = driver.prepared([b"a"]), cast(Any, driver.system)
        system._links.failed = lambda _name, error, **_: failures.append(str(error))
        with object_store.disturbed(repeating):
            assert driver.system.commit(driver.author, made, give_up=lambda: True) == []
        driver.commits(made)
    assert failures
    assert not [one for one in failures if "vended" in one]


def test_a_catalogue_that_is_asked_for_credentials_is_refused() -> None:
    settings = {"uri": "http://localhost", "header.X-Iceberg-Access-Delegation": "vended-credentials"}
    with pytest.raises(ConfigurationError, match="temporary credentials, which this sink does not use"):
        IcebergSink(NAME, catalog=settings)
    IcebergSink(NAME, catalog={**settings, "header.X-Iceberg-Access-Delegation": "none"})
