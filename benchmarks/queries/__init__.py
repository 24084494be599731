"""Structured Streaming queries: what a batch costs, and how fast stateful queries are beside their peers."""
