"""How a command finds its coordinator and its job."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.server import ServerOptions
from onceward.coordinator.service.state_dir import StateDirectory, state_directory
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.operate.prompts import say
from onceward.protocol.settings import Duration
from onceward.protocol.values import JobName

__all__ = ["CoordinatorLocation", "job_name", "operators", "without_driver"]

_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class CoordinatorLocation:
    """Where to find the coordinator: an address, or a state directory."""

    coordinator: str | None
    state_dir: Path | None

    @property
    def embedded(self) -> bool:
        """True for the coordinator inside a job's driver, found through its directory."""
        return self.coordinator is None or self.state_dir is not None


@contextmanager
def operators(place: CoordinatorLocation, *, patience: Duration = "2s") -> Iterator[tuple[OperatorClient, bool]]:
    """Yield a client of the coordinator at the given address, or of a job's embedded one, found through its directory.

    If no job is using the directory, a temporary coordinator serves it, so that history outlives every process; the
    second value is then True.

    :param patience: how long to retry an unreachable coordinator.
    """
    with ExitStack() as stack:
        served, address = None, place.coordinator
        if address is None or place.embedded:
            directory = StateDirectory(state_directory(place.state_dir))
            served = _served_for_the_moment(directory, stack)
            address = served or directory.published()
        yield stack.enter_context(OperatorClient(address, patience=patience)), served is not None


def _served_for_the_moment(directory: StateDirectory, stack: ExitStack) -> str | None:
    """Return the address of a coordinator that ends with ``stack``; None without a store, or while its owner runs."""
    if not directory.has_store:
        return None
    try:
        embedded = EmbeddedCoordinator(directory.path, options=ServerOptions(temporary=True))
    except StoreUnusableError:
        return None
    stack.callback(embedded.close)
    return embedded.address


def without_driver(client: OperatorClient, job: JobName) -> None:
    """With a temporary coordinator: wait until a killed driver counts as gone, at most its lease. It cannot come back
    meanwhile, because it would need the directory exclusively."""
    description = client.describe(job)
    limit = description.settings.seconds("lease") + 5.0
    if not description.driven:
        return
    say(
        f"the last driver of job {job} left without notice; it counts as lost when its lease of "
        f"{description.settings.seconds('lease'):g} s has run out. Waiting ..."
    )
    begun = time.monotonic()
    while client.describe(job).driven and time.monotonic() - begun < limit:
        time.sleep(_POLL_S)


def job_name(text: str) -> JobName:
    """Parse a job's name. Raises ConfigurationError."""
    try:
        return JobName(text)
    except ValueError as error:
        raise ConfigurationError(f"{error}. Nothing was changed.") from None
