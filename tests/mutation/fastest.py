"""A pytest plugin that makes tests notice most mutants quickly."""

import json
from pathlib import Path

import pytest
from hypothesis import Phase, settings

_STATS = Path("mutmut-stats.json")
_LIMIT_S = 8.0
"""Time limit of a short test. mutmut itself waits a minute and more for a mutant that hangs."""


def pytest_sessionstart() -> None:
    """Do not shrink failing examples: one is enough."""
    settings.register_profile("mutation", settings.default, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutation")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the fastest tests first, and end the process when one hangs."""
    if _STATS.is_file():
        seconds = json.loads(_STATS.read_text())["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
        for item in items:
            limit = _LIMIT_S + 20 * seconds.get(item.nodeid, 0.0)
            item.add_marker(pytest.mark.timeout(limit, method="thread"), append=False)
