"""Names shared by feeder, job and check: of topics, and of the table. Values only, so that they share no code."""

__all__ = ["COLUMNS", "DELAYED", "FLIGHTS", "JOB", "OUTPUTS", "PARTITIONS", "REJECTED", "TABLE"]

JOB = "flights"
FLIGHTS = "flights"
DELAYED = "flights-delayed"
REJECTED = "flights-rejected"
OUTPUTS = (DELAYED, REJECTED)
PARTITIONS = 6
TABLE = "delays"
"""The Delta table, a directory beside the logs."""
COLUMNS = ("time_hour", "carrier", "flight", "origin", "dest", "delay", "gained")
"""Of the table, and of each value in the topic of delays."""
