"""Names that feeder, job and check agree on. Values only, so that they can share them without sharing code."""

__all__ = ["DELAYED", "FLIGHTS", "JOB", "OUTPUTS", "PARTITIONS", "REJECTED"]

JOB = "flights"
FLIGHTS = "flights"
DELAYED = "flights-delayed"
REJECTED = "flights-rejected"
OUTPUTS = (DELAYED, REJECTED)
PARTITIONS = 6
