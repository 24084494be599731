"""Decides: the pure protocol core. No clock, no I/O, no threads, no chance."""
