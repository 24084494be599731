"""Deliberate bugs: the product is broken on purpose, one bug at a time, and a hunt must find each by the right
invariant."""
