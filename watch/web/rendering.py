"""Answers as pages."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from onceward.common.printable import printable
from onceward.common.readable import age, count, duration, latency, size
from onceward.watch.web.sparkline import points

__all__ = ["FILES", "render"]

_HERE = Path(__file__).parent
_MOMENT = timedelta(seconds=1)

FILES: Mapping[str, tuple[bytes, str]] = {
    "/style.css": ((_HERE / "static" / "style.css").read_bytes(), "text/css; charset=utf-8"),
    "/page.js": ((_HERE / "static" / "page.js").read_bytes(), "text/javascript; charset=utf-8"),
}
"""What a page loads, by path: the content and its type."""


def render(template: str, **values: Any) -> str:
    """Every text is escaped for HTML, and its control characters, which could turn its direction, are made visible."""
    return _environment.get_template(template).render(now=datetime.now(UTC), **values)


def _finalize(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _moment(at: datetime | None) -> Markup:
    """A time, which the script shows as local."""
    if at is None:
        return Markup("–")
    known = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-local>{} UTC</time>').format(
        known.isoformat(timespec="milliseconds"), known.strftime("%Y-%m-%d %H:%M:%S")
    )


def _ago(at: datetime | None, now: datetime) -> Markup:
    return _age("ago", at, lambda known: "now" if now - known < _MOMENT else age(known, now))


def _elapsed(at: datetime | None, now: datetime) -> Markup:
    return _age("since", at, lambda known: duration(max(0.0, (now - known).total_seconds())))


def _left(at: datetime, now: datetime) -> Markup:
    return _age("until", at, lambda known: duration(max(0.0, (known - now).total_seconds())))


def _latency(took: timedelta | None) -> str:
    return "–" if took is None else latency(took.total_seconds())


def _age(kind: str, at: datetime | None, text: Callable[[datetime], str]) -> Markup:
    """A time whose text passes: the script writes it again each second."""
    if at is None:
        return Markup("an unknown time")
    iso = at.astimezone(UTC).isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" data-age="{}">{}</time>').format(iso, kind, text(at))


def _took(took: timedelta | None) -> str:
    return "–" if took is None else duration(took.total_seconds())


def _breakable(text: str) -> Markup:
    """Long names may wrap after their separators."""
    shown = printable(text)
    return Markup("").join(Markup("{}<wbr>").format(part) if part in "-_." else escape(part) for part in shown)


_environment = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "ago": _ago,
    "elapsed": _elapsed,
    "latency": _latency,
    "left": _left,
    "count": count,
    "moment": _moment,
    "size": size,
    "took": _took,
    "breakable": _breakable,
    "points": points,
}
