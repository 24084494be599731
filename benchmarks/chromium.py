"""Chromium as a person would have it; Playwright's own download is not used."""

import shutil

__all__ = ["chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Return the path of an installed one. ``scripts/chromium.sh`` installs it."""
    return next(filter(None, map(shutil.which, _NAMES)), None)
