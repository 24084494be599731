"""Stand-ins for the two programs of the broker's image that compose/quickstart.yaml calls; the local broker's jars lack
them. They take only the options that the file uses.

    broker_tools.py kafka-topics.sh --bootstrap-server HOST:PORT --create --if-not-exists --topic T --partitions N
    broker_tools.py kafka-broker-api-versions.sh --bootstrap-server HOST:PORT
"""

import argparse
import sys

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

_LIMIT_S = 10.0


def main(program: str, words: list[str]) -> int:
    options = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    options.add_argument("--bootstrap-server", required=True)
    if program == "kafka-topics.sh":
        options.add_argument("--create", action="store_true", required=True)
        options.add_argument("--if-not-exists", action="store_true", required=True)
        options.add_argument("--topic", required=True)
        options.add_argument("--partitions", type=int, required=True)
    given = options.parse_args(words)
    admin = AdminClient({"bootstrap.servers": given.bootstrap_server, "log_level": 0})
    try:
        admin.list_topics(timeout=_LIMIT_S)
        if program == "kafka-topics.sh":
            admin.create_topics([NewTopic(given.topic, given.partitions)])[given.topic].result(_LIMIT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
