"""What a job without transactions may repeat: records of the checkpoint that was open when its driver died."""

from collections import Counter
from collections.abc import Iterable, Mapping

from onceward.operate.verify import History, Lane

__all__ = ["unexplained"]


def unexplained(history: History, deaths: Iterable[int], per_checkpoint: int) -> list[str]:
    """Describe each record that is repeated more often than the deaths explain. Every record must be unique.

    ``deaths``: per driver that died, the last checkpoint completed before; 0 = none. The open checkpoint began where
    that one ended, and had at most ``per_checkpoint`` offsets in all its ranges.
    """
    ends: dict[int, Mapping[Lane, int]] = {one.checkpoint: one.ends for one in history.reports if one.ends is not None}
    places = {content: (fed.lane, fed.offset) for fed in history.fed for content in fed.outputs}
    visible = Counter(one.content for one in history.rest)
    begins = [ends.get(checkpoint, {}) for checkpoint in deaths]
    found = []
    for content, copies in visible.items():
        if content not in places:
            continue  # foreign: the judge reports it
        lane, offset = places[content]
        repeats = sum(begin.get(lane, 0) <= offset < begin.get(lane, 0) + per_checkpoint for begin in begins)
        if copies - 1 > repeats:
            found.append(f"{content}, {lane} offset {offset}, is there {copies} times; {repeats} crashes may repeat it")
    extra = visible.total() - len(visible)
    if extra > per_checkpoint * len(begins):
        found.append(f"{extra} records are repeated, after {len(begins)} crashes with {per_checkpoint} open at most")
    return found
