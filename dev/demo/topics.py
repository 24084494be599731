"""Names shared by feeder, job and check. Values only, so that they share no code."""

__all__ = ["DELAYED", "FLIGHTS", "JOB", "OUTPUTS", "PARTITIONS", "REJECTED"]

JOB = "flights"
FLIGHTS = "flights"
DELAYED = "flights-delayed"
REJECTED = "flights-rejected"
OUTPUTS = (DELAYED, REJECTED)
PARTITIONS = 6
