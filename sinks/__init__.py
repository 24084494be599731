"""Sinks, by the system they write to."""
