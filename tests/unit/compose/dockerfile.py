"""Parse compose/Dockerfile."""

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.compose import FOLDER, ROOT

IMAGES = ("coordinator", "job", "toxiproxy")
"""Stages that are run; the others only build."""


@dataclass(kw_only=True)
class Stage:
    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """(instruction, its text)."""

    def all(self, instruction: str) -> list[str]:
        return [text for what, text in self.steps if what == instruction]


def stages() -> dict[str, Stage]:
    """Return the stages by name. Raises ValueError for a stage without a name."""
    found: dict[str, Stage] = {}
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    for line in filter(None, map(str.strip, lines)):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, name = re.split(r"\s+AS\s+", rest)
            found[name] = Stage(name=name, base=base)
        else:
            list(found.values())[-1].steps.append((instruction, re.sub(r"\s+", " ", rest)))
    return found


def lineage(stage: Stage) -> Iterator[Stage]:
    """Yield the stage and the stages that it builds on."""
    known = stages()
    while True:
        yield stage
        if stage.base not in known:
            return
        stage = known[stage.base]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a file away from the builds; the last matching rule decides."""
    kept_away = False
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        if not rule or rule.startswith("#"):
            continue
        pattern = rule.removeprefix("!")
        parents = ["/".join(path.split("/")[: depth + 1]) for depth in range(path.count("/") + 1)]
        if any(
            fnmatch.fnmatch(part, pattern) or fnmatch.fnmatch(f"/{part}", pattern.replace("**", "*"))
            for part in parents
        ):
            kept_away = not rule.startswith("!")
    return kept_away
