"""Stores the durable facts of all jobs."""
