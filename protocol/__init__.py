"""The pure protocol core, which makes the decisions. No clock, no I/O, no threads, no randomness."""
