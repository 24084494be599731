"""What mutmut found about each mutant, as stored beside the mutated files."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MISSED", "TESTS", "TIMEOUT", "TYPES", "Verdicts"]

TESTS = {1, 3, 11, -11}
"""A test failed, or the mutant crashed the process."""
TYPES = {37}
TIMEOUT = {24, -24, 36, -9}
MISSED = {0, 5, 33}
"""All tests passed, or none reaches the code."""


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Exit codes of the tests of one module, by mutant name; None for mutants that were not run."""

    place: Path
    module: str
    codes: dict[str, int | None]

    @classmethod
    def load(cls, place: Path, module: str) -> "Verdicts | None":
        """Load the verdicts; None if nothing has been mutated yet."""
        meta = place / "mutants" / f"{module}.meta"
        if not meta.is_file() or not meta.with_suffix("").is_file():
            return None
        return cls(place=place, module=module, codes=json.loads(meta.read_text())["exit_code_by_key"])

    def save(self, codes: dict[str, int | None]) -> None:
        meta = self.place / "mutants" / f"{self.module}.meta"
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "exit_code_by_key": codes}, indent=4))

    def change(self, key: str) -> tuple[str, str]:
        """The source of the function that ``key`` mutates: original and mutated."""
        mutated = self.place / "mutants" / self.module
        spans = json.loads(mutated.with_name(f"{mutated.name}.spans").read_text())["spans"]
        lines = mutated.read_text().splitlines()
        name = key.rpartition(".")[2]
        original = re.sub(r"__mutmut_\d+$", "__mutmut_orig", name)
        old, new = ("\n".join(lines[first - 1 : last]) for first, last in (spans[original], spans[name]))
        return old.replace(original, name), new
