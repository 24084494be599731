"""The folders that hold the product: each is a link in ``onceward/``."""

from pathlib import Path

__all__ = ["ROOMS", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(sorted(link.name for link in (ROOT / "onceward").iterdir() if link.is_symlink()))
