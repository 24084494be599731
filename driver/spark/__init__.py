"""Spark as the driver uses it: sessions, jobs, and what plans show of a transform."""
