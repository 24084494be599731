"""Writes slots. Runs on executors: standard library, pyarrow, numpy and confluent_kafka only."""
