"""The registry behind an endpoint, and the description of each metric, which the reference page shows too."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.process_collector import ProcessCollector

__all__ = ["Described", "Registry"]


@dataclass(frozen=True)
class Described:
    """One metric."""

    name: str
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    labels: tuple[str, ...]
    text: str


class Registry(CollectorRegistry):
    """With the process's own metrics, and without the times at which series were created: they would double them."""

    def __init__(self) -> None:
        super().__init__()
        ProcessCollector(registry=self)

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
