"""Find the root exception in a Spark error, without the Python and JVM stack traces around it."""

import re
from dataclasses import dataclass

__all__ = ["Cause", "cause_of", "shorten"]

_OURS = ("onceward.",)
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_LIBRARY = re.compile(r"/lib(64)?/python[\d.]*/|/(site|dist)-packages/|/pyspark\.zip/|^<")
"""Files that are not the user's own, on whatever machine: Python's, installed packages', Spark's."""
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(:|$)")
_MOST_RECENT = re.compile(r"most recent failure: (?:Lost task [^:]*?\): )?(?P<cause>[^\n]+)")
_CAUSED_BY = re.compile(r"^Caused by: (?P<cause>[^\n]+)$", re.MULTILINE)
_PASSING = ("ExecutorLostFailure", "FetchFailed", "cancelled", "TaskKilled", "was lost", "OutOfMemory")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The root cause of a task failure."""

    text: str
    """The full exception message and where it was raised."""
    by_record: bool
    """A record may have caused it: it is neither an error of Onceward nor the loss of an executor."""


def cause_of(error: BaseException) -> Cause:
    """Return the root cause of ``error``, as users should see it."""
    text = str(error).strip() or repr(error)
    return _in_python(text) or _in_jvm(text)


def _in_python(text: str) -> Cause | None:
    *_, last = text.split(_TRACEBACK)
    if last == text:
        return None
    where, theirs = "", False
    said: list[str] = []
    for line in last.strip("\n").splitlines():
        if said and (not line.strip() or line.startswith(("\tat ", " SQLSTATE: "))):
            break
        if said:
            said.append(line)
        elif frame := _FRAME.match(line):
            if theirs and _LIBRARY.search(frame["file"]):
                continue
            theirs = not _LIBRARY.search(frame["file"])
            where = f" ({frame['file'].rsplit('/', 1)[-1]}, line {frame['line']}, in {frame['name']})"
        elif _RAISED.match(line):
            said.append(line)
    if not said:
        return None
    ours = said[0].startswith(_OURS)
    message = "\n".join(said).strip()
    # An error of Onceward is complete in its message; its class name means nothing to users
    return Cause(text=message.partition(": ")[2] if ours else message + where, by_record=not ours)


def _in_jvm(text: str) -> Cause:
    found = text.splitlines()[0]
    if not found.startswith("["):  # not a Spark error class: the message is further down
        deepest = _CAUSED_BY.findall(text) or _MOST_RECENT.findall(text)
        found = deepest[-1] if deepest else found
    found = re.sub(r" SQLSTATE: \w{5}\b.*", "", found)
    return Cause(text=found, by_record=not any(word in text for word in _PASSING))


def shorten(text: str, limit: int = 6000) -> str:
    """Shorten ``text`` to at most ``limit`` characters: Spark's errors carry whole stack traces, which the
    coordinator's history does not need."""
    return text if len(text) <= limit else text[: limit - 20] + " … (shortened)"
