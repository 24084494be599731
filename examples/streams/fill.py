"""Makes the topics of these examples and fills the inputs with generated data, which is the same in every run.

    python examples/streams/fill.py

Needs a broker at localhost:9092. The data is what streams are in practice: records arrive out of order, some late, some
twice, and some hours have none.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

SERVERS = "localhost:9092"
OUTPUTS = (
    "word-counts",
    "orders-per-hour",
    "final-orders-per-hour",
    "hours",
    "paid-orders",
    "enriched-views",
    "sessions",
    "alerts",
    "reorders",
)
TABLES = ("users", "stock")
"""Compacted topics: Kafka keeps at least the newest value of each key."""

Record = tuple[str, str | None]
"""Key and value. No value is a tombstone: the table has no such key any more."""

MORNING = datetime(2026, 1, 5, 8, tzinfo=UTC)
WORDS = "the stream table window join state timer session key value of to and all streams lead to kafka".split()


def lines() -> Iterator[Record]:
    """Text, some with capitals and punctuation, some empty."""
    chance = Random(1)
    for number in range(300):
        words = chance.choices(WORDS, k=chance.randrange(8))
        yield str(number % 7), chance.choice((", ", " ", "  ")).join(words).capitalize() + chance.choice((".", "", "!"))


def orders() -> Iterator[Record]:
    """Orders of a day. Every tenth arrives minutes late, every fiftieth hours late, every twentieth twice."""
    chance = Random(2)
    arriving = []
    for number in range(600):
        at = MORNING + timedelta(seconds=60 * number + chance.uniform(0, 40))
        if 200 <= number < 330:  # two hours without orders
            continue
        delay = 4 * 3600 if number % 50 == 7 else 8 * 60 if number % 10 == 3 else 0
        order = {
            "order": number,
            "category": chance.choice(("books", "music", "games")),
            "cents": chance.randrange(100, 5000),
            "at": _text(at),
        }
        arriving.append((at + timedelta(seconds=delay), (str(number), json.dumps(order))))
        if number % 20 == 5:
            arriving.append((at + timedelta(seconds=delay + 30), (str(number), json.dumps(order))))
    return _in_order_of_arrival(arriving)


def payments() -> Iterator[Record]:
    """Payments of most orders, minutes after the order. Some come hours later, too late to count."""
    chance = Random(3)
    arriving = []
    for key, value in dict(orders()).items():
        order = json.loads(value or "")
        if chance.random() < 0.8:
            wait = timedelta(seconds=chance.uniform(1, 3000) if chance.random() < 0.9 else chance.uniform(4000, 9000))
            at = datetime.fromisoformat(order["at"]) + wait
            payment = {"order": order["order"], "cents": order["cents"], "at": _text(at)}
            arriving.append((at, (key, json.dumps(payment))))
    return _in_order_of_arrival(arriving)


def users() -> Iterator[Record]:
    """A table of users by name. Some move, some leave."""
    chance = Random(4)
    towns = ("Lisbon", "Osaka", "Quito")
    for number in range(40):
        yield f"user{number}", json.dumps({"town": chance.choice(towns)})
    for number in range(0, 40, 4):
        yield f"user{number}", json.dumps({"town": chance.choice(towns)})
    for number in range(0, 40, 10):
        yield f"user{number}", None


def views() -> Iterator[Record]:
    """Page views, some of users that the table does not have."""
    chance = Random(5)
    for number in range(500):
        page = {"page": chance.choice(("/", "/books", "/cart")), "at": _text(MORNING + timedelta(seconds=number))}
        yield f"user{chance.randrange(44)}", json.dumps(page)


def actions() -> Iterator[Record]:
    """What users do between login and logout. Some never log out, some actions arrive late."""
    chance = Random(6)
    arriving = []
    for user in range(12):
        at = MORNING + timedelta(seconds=chance.uniform(0, 7200))
        for _ in range(6):
            steps = ["login", *["click"] * chance.randrange(6), *["logout"] * chance.randrange(2)]
            for step in steps:
                delay = 500 if chance.random() < 0.1 else 0
                action = {"action": step, "at": _text(at)}
                arriving.append((at + timedelta(seconds=delay), (f"user{user}", json.dumps(action))))
                at += timedelta(seconds=chance.uniform(5, 900))
            at += timedelta(seconds=chance.uniform(1900, 9000))
    return _in_order_of_arrival(arriving)


def movements() -> Iterator[Record]:
    """Pieces that enter and leave a warehouse."""
    chance = Random(7)
    for _ in range(500):
        yield f"product{chance.randrange(20)}", str(chance.choice((-5, -3, -1, 2, 6)))


def readings() -> Iterator[Record]:
    """Temperatures of sensors. Each sensor is silent now and then, for more than ten minutes."""
    chance = Random(8)
    arriving = []
    for sensor in range(8):
        at = MORNING + timedelta(seconds=chance.uniform(0, 60))
        for _ in range(60):
            reading = {"celsius": round(chance.uniform(15, 25), 1), "at": _text(at)}
            arriving.append((at + timedelta(seconds=chance.uniform(0, 50)), (f"sensor{sensor}", json.dumps(reading))))
            at += timedelta(seconds=chance.uniform(700, 1500) if chance.random() < 0.08 else chance.uniform(20, 100))
    return _in_order_of_arrival(arriving)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def _in_order_of_arrival(arriving: Sequence[tuple[datetime, Record]]) -> Iterator[Record]:
    return (record for _, record in sorted(arriving, key=lambda pair: pair[0]))


INPUTS = {make.__name__: make for make in (lines, orders, payments, users, views, actions, movements, readings)}


def make_topics(servers: str) -> None:
    """Make the topics of these examples, each with two partitions. Topics that exist stay as they are."""
    names = dict.fromkeys((*INPUTS, *OUTPUTS, *TABLES))
    cleanup = {name: "compact" if name in TABLES else "delete" for name in names}
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics(
        [NewTopic(f"streams-{name}", 2, config={"cleanup.policy": cleanup[name]}) for name in names]
    )
    for topic, future in made.items():
        error = future.exception()
        print(f"{topic}: {error or 'made'}")


def produce(servers: str, topic: str, records: Iterable[Record]) -> None:
    """Write the records in their order, and wait until the broker has them."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
    producer.flush()


if __name__ == "__main__":
    make_topics(SERVERS)
    for name, make in INPUTS.items():
        produce(SERVERS, f"streams-{name}", make())
