"""What a coordinator must know of Structured Streaming queries (entry point ``onceward.systems``): their positions."""

from typing import Final

from onceward.protocol.kinds import Kind

__all__ = ["SPARK_QUERY"]

SPARK_QUERY: Final = Kind(
    documents={"spark-batch": "onceward.driver.streaming.batches:check_positions"},
    positions={"spark-batch": "onceward.driver.streaming.batches:skip_to"},
)
