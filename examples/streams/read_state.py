"""Lists the most frequent words from the state of word_count.py, without its output topic, while it runs or later.

    python examples/streams/read_state.py

Spark's data source ``statestore`` reads the state of a query from its checkpoint location, as it is after the newest
batch; the option ``batchId`` names an older one. Columns: key, value, partition_id.
"""

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
counts = spark.read.format("statestore").load("checkpoints/word-count").select("key.word", "value.count")
for word, count in counts.orderBy("count", "word", ascending=False).limit(10).collect():
    print(count, word)
