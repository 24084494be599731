"""The crash suite: every process dies at every point, and every record still takes effect once (README.md)."""
