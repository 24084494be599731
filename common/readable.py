"""Numbers as people read them."""

from datetime import datetime

__all__ = ["age", "count", "duration", "latency", "size"]

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """340 ms, 3 s, 2 min, 1 h 5 min, 3 d 4 h."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{sign if milliseconds else ''}{milliseconds} ms"
    whole = round(seconds)
    index = next(number for number, (_, size) in enumerate(_UNITS) if whole >= size)
    (unit, size), finer = _UNITS[index], _UNITS[index + 1 :][:1]
    parts = [f"{whole // size} {unit}"]
    if unit in ("d", "h"):
        ((name, part),) = finer
        if rest := whole % size // part:
            parts.append(f"{rest} {name}")
    return sign + " ".join(parts)


def latency(seconds: float) -> str:
    """0.84 ms, 7.2 ms, 340 ms: what is short is not rounded to nothing."""
    milliseconds = seconds * 1000
    return f"{milliseconds:.2g} ms" if 0.001 <= milliseconds < 9.95 else duration(seconds)


def age(then: datetime, now: datetime) -> str:
    """3 s ago. The clocks of two machines differ: a moment that is still to come is now."""
    return f"{duration(max(0.0, (now - then).total_seconds()))} ago"


def count(number: int) -> str:
    """950, 12.3 k, 1.2 M."""
    size = float(abs(number))
    if size < 1000:
        return str(number)
    for unit in ("k", "M", "G", "T"):
        size /= 1000
        if size < 999.95 or unit == "T":
            break
    return f"{'-' if number < 0 else ''}{size:.1f} {unit}"


def size(octets: int) -> str:
    """512 B, 12.3 kB, 4.56 MB."""
    amount, unit = float(octets), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{octets} B" if unit == "B" else f"{amount:.3g} {unit}"
