"""Kafka sink: transactions written on executors, ended by the driver or anybody else who has the committable."""
