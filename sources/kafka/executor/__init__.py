"""Reads offset ranges. Runs on executors: standard library, pyarrow, numpy and confluent_kafka only."""
