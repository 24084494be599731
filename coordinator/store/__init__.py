"""Remembers: the durable facts of all jobs."""
