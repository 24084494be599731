"""A job of a coordinator that runs as a service: copies the topic TOPIC to TOPIC-copy.

    python copy_topic.py TOPIC

README.md says what has to run before.
"""

import sys
from pathlib import Path

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline, load_clusters

topic = sys.argv[1]
main = load_clusters(Path(__file__).with_name("clusters.toml"))["main"]

Pipeline(
    job=f"copy-{topic}",
    source=KafkaSource(main, topics=[topic], start="earliest"),
    sink=KafkaSink(main, topic=f"{topic}-copy"),
    coordinator="localhost:7878",
    # if this process dies, the coordinator waits this long for its next start, then ends its transactions itself
    settings=CheckpointSettings(orphan_grace="10s"),
).run()
