"""Kafka sink: executors write transactions; the driver, or any process with the committable, ends them."""
