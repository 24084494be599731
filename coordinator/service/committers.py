"""What the coordinator ends transactions with: plug-ins, each with the clusters that its operator named.

Entry-point group ``onceward.committers``: the name is the kind of a sink, the value a callable
``(clusters, *, generation=...) -> Committer``. The argument ``generation`` says on whose behalf it works, so that it
touches nothing newer. Its methods block: call them in threads.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from importlib.metadata import entry_points
from typing import Any, Protocol, Self

from onceward.coordinator.errors import ConfigurationError, OncewardError
from onceward.coordinator.protocol.committing import Age, Committer
from onceward.coordinator.protocol.values import NO_GENERATION, Committable, Generation

__all__ = ["COMMITTERS", "Committers", "MakeCommitter", "installed_committers"]

COMMITTERS = "onceward.committers"


class MakeCommitter(Protocol):
    """``generation`` as it is while the committer works."""

    def __call__(self, clusters: Iterable[Any], *, generation: Callable[[], int | None] = ...) -> Committer: ...


class Committers:
    """Makes committers by the kind of a sink.

    :param clusters: by name, opaque here: what the plug-ins take.
    """

    def __init__(self, plugins: Mapping[str, MakeCommitter], clusters: Mapping[str, Any]) -> None:
        self._plugins = dict(plugins)
        self._clusters = dict(clusters)

    @classmethod
    def installed(cls, clusters: Mapping[str, Any]) -> Self:
        """Those of installed distributions. Raises ConfigurationError for one that cannot be loaded."""
        return cls(installed_committers("started") if clusters else {}, clusters)

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names. None: nothing can be ended here."""
        return tuple(self._clusters)

    def ages(self, kind: str, committables: Iterable[Committable]) -> list[Age]:
        """Of the transactions whose age can be told; asks nobody."""
        try:
            with closing(self.make(kind, NO_GENERATION)) as committer:
                return [age for age in map(committer.age, committables) if age is not None]
        except OncewardError:
            return []  # a document or a plug-in that is not known here: whoever settles says so

    def make(self, kind: str, generation: Generation, cluster: str | None = None) -> Committer:
        """One for all clusters, or for the one named; close it. Raises ConfigurationError."""
        plugin = self._plugins.get(kind)
        if plugin is None:
            known = ", ".join(sorted(self._plugins)) or "none"
            raise ConfigurationError(
                f"No committer for sinks of kind {kind} is installed beside this coordinator (known: {known}). Their "
                "transactions stay as they are. Install it here, or start the job: its driver ends them."
            )
        clusters = self._clusters.values() if cluster is None else [self._clusters[cluster]]
        return plugin(clusters, generation=lambda: generation)


def installed_committers(done: str) -> Mapping[str, MakeCommitter]:
    """By the kind of their sinks. Raises ConfigurationError; ``done`` is what has not been done then."""
    plugins: dict[str, MakeCommitter] = {}
    for point in entry_points(group=COMMITTERS):
        try:
            plugins[point.name] = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"The committer for sinks of kind {point.name} ({point.value}) cannot be loaded: {error}. Nothing was "
                f"{done}. Install what it needs, for example with: pip install 'onceward[kafka]'; or leave --clusters "
                "out: then nobody but drivers asks the brokers."
            ) from error
    return plugins
