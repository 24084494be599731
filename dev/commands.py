"""``onceward demo`` and ``onceward dev``, which the command finds by the entry points ``onceward.commands``."""

from pathlib import Path
from typing import Annotated

import typer

from onceward.common.errors import ConfigurationError

__all__ = ["demo", "dev"]

dev = typer.Typer(help="For development: servers on loopback.", no_args_is_help=True)


def demo(
    seconds: Annotated[float, typer.Option(help="How long the flights are fed.")] = 90.0,
    limit: Annotated[int | None, typer.Option(help="Feed at most this number of flights.")] = None,
    postgres: Annotated[bool, typer.Option("--postgres", help="Keep the store in a real PostgreSQL.")] = False,
    keep: Annotated[Path | None, typer.Option(help="A new directory for logs and store, kept.")] = None,
) -> None:
    """Watch real records go through Spark exactly once while processes are killed."""
    from onceward.dev.demo.run import run_demo

    raise typer.Exit(run_demo(seconds=seconds, limit=limit, postgres=postgres, keep=keep))


@dev.command("kafka")
def _kafka(
    brokers: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    transaction_version: Annotated[
        int | None, typer.Option(min=0, max=2, help="The cluster's transaction.version; by default the highest.")
    ] = None,
    directory: Annotated[Path | None, typer.Option(help="Keep the data here.")] = None,
    port: Annotated[int | None, typer.Option(help="Of the first broker; by default a free one.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic to make, if it is not there; may be repeated.")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Of each --topic.")] = 3,
) -> None:
    """Run a real Kafka on loopback until Ctrl-C; prints its bootstrap servers."""
    if brokers not in (1, 3):
        raise ConfigurationError(f"{brokers} brokers are not supported. Nothing was started. Use --brokers 1 or 3.")
    from onceward.dev.kafka.command import run_dev_kafka

    made = run_dev_kafka(brokers, transaction_version, directory, port, topics=topic or [], partitions=partitions)
    raise typer.Exit(made)


@dev.command("topic")
def _topic(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="A topic; may be repeated.")],
    servers: Annotated[str, typer.Option(metavar="HOST:PORT", help="What ``onceward dev kafka`` has printed.")],
    partitions: Annotated[int, typer.Option(min=1, help="Of each topic.")] = 3,
) -> None:
    """Add topics to a running Kafka; those that are there stay as they are."""
    from onceward.dev.kafka.topics import BROKERS_DEFAULT, make_topics

    make_topics(servers, names, partitions=partitions, replicas=BROKERS_DEFAULT)


@dev.command("postgres")
def _postgres(
    directory: Annotated[Path | None, typer.Option(help="Keep the data here.")] = None,
    port: Annotated[int | None, typer.Option(help="By default a free one.")] = None,
) -> None:
    """Run a real PostgreSQL on loopback until Ctrl-C; prints the URL of a database for ``onceward serve --store``."""
    from onceward.dev.postgres.command import run_dev_postgres

    raise typer.Exit(run_dev_postgres(directory, port))
