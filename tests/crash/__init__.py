"""The crash suite: every process dies at every place, and every record still takes effect once (docs/crash.md)."""
