"""The arguments that every kind of job takes: their names, their texts, and what is refused before anything starts."""

import inspect
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Self, TypedDict, TypeVar

from onceward.client.access import CoordinatorAccess
from onceward.client.calls import addresses_of
from onceward.client.tls import CoordinatorTls
from onceward.connectors.interfaces import Risk
from onceward.coordinator.service.listen import Listen
from onceward.driver.preflight import accepted_risks
from onceward.driver.restarts import Restart
from onceward.protocol.settings import CheckpointSettings
from onceward.watch.metrics.endpoint import MetricsEndpoint, as_endpoint
from onceward.watch.traces.installed import wanted
from onceward.watch.web.page import place_in_driver

__all__ = ["NOT_GIVEN", "CheckedOptions", "JobOptions", "describing_options"]

F = TypeVar("F", bound=Callable[..., Any])


class JobOptions(TypedDict, total=False):
    """What Pipeline, StreamSink and StreamingPipeline all take.

    :param coordinator: ``host:port`` of ``onceward serve``; without it a coordinator runs inside this process.
    :param tls: for a coordinator with TLS; without it, what ``ONCEWARD_TLS_CA`` and its siblings name, if set.
    :param token: for a coordinator that knows its peers by tokens: ``env:NAME`` or ``file:PATH``; without it, what
        ``ONCEWARD_TOKEN`` says.
    :param settings: of checkpoints. For a query ``interval`` and ``min_pause`` have no effect, because its trigger sets
        the pace, and without settings its ``timeout`` is 5 min.
    :param restart: delays after failures of a generation or a query; None = Flink's exponential delay.
    :param state_dir: the embedded coordinator's directory (default ``$ONCEWARD_STATE_DIR`` or ``./.onceward``).
    :param metrics: where to serve metrics for Prometheus, for example ``127.0.0.1:9464``; None = nowhere.
    :param web: where to serve the page of the coordinator in this process, ``127.0.0.1:PORT`` (``onceward[web]``);
        port 0 for any free one.
    :param traces: export OpenTelemetry traces of checkpoints, as the variables ``OTEL_*`` say.
    :param accept_risks: warnings of the preflight that are known and not shown: ``replication``.
    """

    coordinator: str | None
    tls: CoordinatorTls | None
    token: str | None
    settings: CheckpointSettings | None
    restart: Restart | None
    state_dir: str | os.PathLike[str] | None
    metrics: str | MetricsEndpoint | None
    web: str | None
    traces: bool
    accept_risks: Collection[str]


NOT_GIVEN: JobOptions = {
    "coordinator": None,
    "tls": None,
    "token": None,
    "settings": None,
    "restart": None,
    "state_dir": None,
    "metrics": None,
    "web": None,
    "traces": False,
    "accept_risks": (),
}
"""Their defaults."""


@dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """The options of one job. Nothing is open yet."""

    access: CoordinatorAccess
    settings: CheckpointSettings | None
    restart: Restart
    metrics: MetricsEndpoint | None
    web: Listen | None
    traces: bool
    accepted: frozenset[Risk]

    @classmethod
    def of(cls, taker: str, given: JobOptions) -> Self:
        """Raises ConfigurationError for a value, and TypeError for a name, that ``taker`` cannot use."""
        if unknown := sorted(given.keys() - NOT_GIVEN.keys()):
            raise TypeError(f"{taker}() got an unexpected keyword argument {unknown[0]!r}")
        options = NOT_GIVEN | given
        if (address := options["coordinator"]) is not None:
            addresses_of(address)
        access = CoordinatorAccess(
            address=address, tls=options["tls"], token=options["token"], state_dir=options["state_dir"]
        )
        return cls(
            access=access,
            settings=options["settings"],
            restart=options["restart"] or Restart(),
            metrics=as_endpoint(options["metrics"]),
            web=place_in_driver(options["web"], access),
            traces=wanted(options["traces"]),
            accepted=accepted_risks(options["accept_risks"]),
        )


def describing_options(function: F) -> F:
    """Have ``help`` and ``inspect.signature`` show each option of a function that takes ``**options``."""
    own, raises, errors = inspect.cleandoc(function.__doc__ or "").partition("\n:raises")
    described = inspect.cleandoc(JobOptions.__doc__ or "").partition("\n\n")[2]
    function.__doc__ = f"{own}\n{described}{raises}{errors}"
    kept = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    hints = JobOptions.__annotations__
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in NOT_GIVEN.items()
    ]
    function.__signature__ = inspect.Signature([*kept, *options])  # type: ignore[attr-defined]
    return function
