"""What the coordinator ends transactions with: plug-ins, each with the clusters that its operator named.

Entry-point group ``onceward.committers``: the name is the kind of a sink, the value a callable
``(clusters, *, generation) -> Committer``, as described by ``coordinator.pipeline.interfaces.Committer``. The argument
``generation`` says on whose behalf it works, so that it touches nothing newer. Its methods block: call them in threads.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any, Protocol, Self

from coordinator.errors import ConfigurationError
from coordinator.protocol.values import Claim, Committable, Generation, JobName, Settlement

__all__ = ["COMMITTERS", "Committer", "Committers", "MakeCommitter"]

COMMITTERS = "onceward.committers"


class Committer(Protocol):
    """As ``coordinator.pipeline.interfaces.Committer``: what is needed of it here."""

    def commit(
        self, committables: Sequence[Committable], *, give_up: Callable[[], bool] = ...
    ) -> Sequence[Settlement]: ...

    def describe(self, committable: Committable) -> str: ...

    def sweep(self, job: JobName, *, keep: Collection[Committable] = ...) -> Sequence[str]: ...

    def claims(self, job: JobName) -> Sequence[Claim]: ...

    def renew_claim(self, job: JobName, claim: Claim) -> None: ...

    def longest_open(self) -> timedelta: ...

    def close(self) -> None: ...


class MakeCommitter(Protocol):
    """``generation`` as it is while the committer works."""

    def __call__(self, clusters: Iterable[Any], *, generation: Callable[[], int | None]) -> Committer: ...


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
        plugins: dict[str, MakeCommitter] = {}
        for point in entry_points(group=COMMITTERS) if clusters else ():
            try:
                plugins[point.name] = point.load()
            except (ImportError, AttributeError) as error:
                raise ConfigurationError(
                    f"The committer for sinks of kind {point.name} ({point.value}) cannot be loaded: {error}. Nothing "
                    "was started. Install what it needs, for example with: pip install 'onceward[kafka]'; or serve "
                    "without --clusters: then only drivers end transactions."
                ) from error
        return cls(plugins, clusters)

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names. None: nothing can be ended here."""
        return tuple(self._clusters)

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
