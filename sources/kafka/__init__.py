"""Kafka source: planning on the driver, reading on executors."""
