"""The command ``onceward``. What a command needs is imported when it runs: serving needs neither Spark nor Kafka."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from onceward.coordinator.errors import ConfigurationError, ExitCode, OncewardError
from onceward.coordinator.ops.job_commands import COMMANDS
from onceward.coordinator.ops.options import CoordinatorOption, JsonOption, StateDirOption, place_of
from onceward.coordinator.printable import escape_logs, printable

__all__ = ["app", "main"]

_DEFAULT_LISTEN = "127.0.0.1:7878"

app = typer.Typer(
    name="onceward",
    help="Exactly-once checkpoints for PySpark pipelines from Kafka to Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
dev_app = typer.Typer(help="For development: servers on loopback.", no_args_is_help=True)
app.add_typer(dev_app, name="dev")


@app.command()
def serve(
    listen: Annotated[str, typer.Option(help="HOST:PORT or [IPV6]:PORT; port 0 for any free one.")] = _DEFAULT_LISTEN,
    store: Annotated[
        str | None, typer.Option(help="Store URL, sqlite:///PATH on a local disk. Default: in the state directory.")
    ] = None,
    clusters: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Clusters to settle on for jobs whose driver is gone.",
        ),
    ] = None,
    reflection: Annotated[bool, typer.Option("--reflection", help="Let tools list the services.")] = False,
    insecure_listen_anywhere: Annotated[
        bool,
        typer.Option("--insecure-listen-anywhere", help="Take calls from other machines, without TLS or passwords."),
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a coordinator for many jobs until SIGTERM or Ctrl-C."""
    from onceward.coordinator.ops.serve import run_serve

    run_serve(
        listen=listen,
        store=store,
        clusters=clusters,
        reflection=reflection,
        anywhere=insecure_listen_anywhere,
        log_level=log_level,
    )


for _command in COMMANDS:
    app.command()(_command)


@app.command()
def verify(
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="The job's name.")],
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="[CLUSTER:]TOPIC", help="What the job reads; more than once for more."),
    ],
    outputs: Annotated[
        list[str], typer.Option("--output", metavar="[CLUSTER:]TOPIC", help="What it writes; more than once for more.")
    ],
    servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Bootstrap servers of one cluster for all topics.")
    ] = None,
    clusters: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Clusters by name, as for onceward serve; then name CLUSTER:TOPIC."),
    ] = None,
    expected_by: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="(topic, key, value) of an input record to its output records, the same way. Without it: a copy.",
        ),
    ] = None,
    from_earliest: Annotated[
        bool, typer.Option("--from-earliest", help="The job began at offset 0. Else its first checkpoint must be kept.")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="For a moment with everything settled and nothing open.")
    ] = 30.0,
    no_order: Annotated[bool, typer.Option("--no-order", help="Do not compare the order per key.")] = False,
    at_least_once: Annotated[
        bool, typer.Option("--at-least-once", help="Of a sink with that delivery: records may be there twice.")
    ] = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a job's output with its input: exactly once? Exit code 0 for PASS, 1 for FAIL, 10 for UNKNOWN."""
    try:
        from onceward.coordinator.ops.verify.command import Wanted, run_verify
    except ImportError as error:
        raise _not_installed("The comparison", error) from error
    wanted = Wanted(
        job=job,
        inputs=inputs,
        outputs=outputs,
        servers=servers,
        clusters=clusters,
        expected_by=expected_by,
        from_earliest=from_earliest,
        order=not no_order,
        at_least_once=at_least_once,
        patience_s=patience,
        as_json=as_json,
    )
    raise typer.Exit(run_verify(wanted, place_of(coordinator, state_dir)))


@app.command()
def doctor(
    coordinator: CoordinatorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what this machine needs for jobs; with --coordinator, also whether it answers."""
    from onceward.coordinator.ops.doctor import run_doctor

    raise typer.Exit(run_doctor(coordinator, as_json=as_json))


@app.command()
def health(coordinator: CoordinatorOption = None) -> None:
    """Ask whether a coordinator takes calls, for supervisors and containers: exit code 0 or 1."""
    from onceward.coordinator.ops.health import run_health

    raise typer.Exit(run_health(coordinator or _DEFAULT_LISTEN))


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the flights are fed.")] = 90.0,
    limit: Annotated[int | None, typer.Option(help="Feed only so many flights.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A new directory for logs and store, kept.")] = None,
) -> None:
    """Watch real records go through Spark exactly once while processes are killed."""
    try:
        from onceward.coordinator.dev.demo.run import run_demo
    except ImportError as error:
        raise _not_installed("The demo", error) from error
    raise typer.Exit(run_demo(seconds=seconds, limit=limit, keep=keep))


@dev_app.command("kafka")
def dev_kafka(
    brokers: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    transaction_version: Annotated[int, typer.Option(min=0, max=2, help="The cluster's transaction.version.")] = 2,
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
    try:
        from onceward.coordinator.dev.kafka.command import run_dev_kafka

        made = run_dev_kafka(brokers, transaction_version, directory, port, topics=topic or [], partitions=partitions)
    except ImportError as error:
        raise _not_installed("The local Kafka", error) from error
    raise typer.Exit(made)


def main() -> None:
    """Entry point: errors of ours become one message on standard error, and their exit code."""
    # what a client warns of while it asks again
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="onceward: %(message)s")
    escape_logs()
    # kafka-python warns of steps of its own that take a tenth of a second, as they do on any busy machine
    logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
    try:
        app()
    except OncewardError as error:
        print(f"onceward: {printable(str(error))}", file=sys.stderr)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(128 + 2)


def _not_installed(what: str, error: ImportError) -> OncewardError:
    message = f"{what} needs packages that are not installed ({error.name}). Nothing was started. "
    problem = ConfigurationError(message + "Install them with: pip install 'onceward[spark]'")
    assert problem.exit_code is ExitCode.USAGE
    return problem
