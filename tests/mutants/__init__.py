"""Deliberate bugs: the product is broken on purpose, one way at a time, and somebody has to notice by name."""
