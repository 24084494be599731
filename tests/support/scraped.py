"""What an endpoint of metrics shows, as Prometheus would read it."""

import ssl
from collections.abc import Mapping
from urllib.request import urlopen

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Scraped", "scrape"]


class Scraped:
    """The metrics of one scrape, or of one collection."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self.families = families
        self.samples = [sample for family in families.values() for sample in family.samples]

    def series(self, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The samples of this name that have these labels, by all of their labels."""
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def value(self, name: str, **labels: str) -> float:
        """The only sample of this name with these labels."""
        (value,) = self.series(name, **labels).values()
        return value

    def labels(self, name: str) -> set[str]:
        """All values of ``job_name`` of a metric."""
        return {sample.labels["job_name"] for sample in self.samples if sample.name == name}


def scrape(url: str, tls: ssl.SSLContext | None = None) -> Scraped:
    """GET and parse. Raises OSError."""
    with urlopen(url, timeout=30, context=tls) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    return Scraped({family.name: family for family in text_string_to_metric_families(text)})
