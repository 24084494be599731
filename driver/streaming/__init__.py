"""Structured Streaming: each batch of a query is one checkpoint of a job."""
