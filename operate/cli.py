"""The command ``onceward``. Each command imports what it needs when it runs: serving needs neither Spark nor Kafka."""

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.common.printable import escape_logs
from onceward.operate.job_commands import COMMANDS
from onceward.operate.options import CoordinatorOption, JsonOption, StateDirOption, not_installed, place_of
from onceward.operate.prompts import print_result, say

__all__ = ["app", "main"]

_DEFAULT_LISTEN = "127.0.0.1:7878"
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="onceward",
    help="Exactly-once checkpoints for PySpark pipelines from Kafka to topics and tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def serve(
    listen: Annotated[
        str, typer.Option(help="HOST:PORT, [IPV6]:PORT or unix:PATH; port 0 for any free one.")
    ] = _DEFAULT_LISTEN,
    advertise: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="The address that clients reach, if it is not the one listened on."),
    ] = "",
    store: Annotated[
        str | None,
        typer.Option(
            help="Store URL, sqlite:///PATH on a local disk or postgresql://USER@HOST/DATABASE. "
            "Default: in the state directory."
        ),
    ] = None,
    store_password: Annotated[
        str | None, typer.Option(metavar="REFERENCE", help="Password for PostgreSQL: env:NAME or file:PATH.")
    ] = None,
    systems: Annotated[
        Path | None,
        typer.Option(
            "--systems", "--clusters", metavar="FILE", help="Systems on which to settle jobs whose driver is lost."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The coordinator's certificate, PEM; all clients then need TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key, PEM.")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Accept only clients with a certificate of these authorities, PEM."),
    ] = None,
    rights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Which clients may do what to which jobs. Read again when it changes."),
    ] = None,
    reflection: Annotated[bool, typer.Option("--reflection", help="Let tools list the services.")] = False,
    insecure_listen_anywhere: Annotated[
        bool,
        typer.Option("--insecure-listen-anywhere", help="Accept calls from other machines without authentication."),
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="text, or json: one object per line.")] = "text",
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there; port 0 for any free one."),
    ] = None,
    web: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the page there that shows jobs; port 0 for any free.")
    ] = None,
    traces: Annotated[
        bool, typer.Option("--traces", help="Export OpenTelemetry traces of checkpoints, as the variables OTEL_* say.")
    ] = False,
) -> None:
    """Run a coordinator for many jobs until SIGTERM or Ctrl-C."""
    from onceward.operate.serve import run_serve, tls_of

    run_serve(
        listen=listen,
        advertise=advertise,
        store=store,
        store_password=store_password,
        systems=systems,
        tls=tls_of(tls_cert, tls_key, client_ca),
        rights=rights,
        reflection=reflection,
        anywhere=insecure_listen_anywhere,
        log_level=log_level,
        log_format=log_format,
        metrics=metrics,
        web=web,
        traces=traces,
    )


for _command in COMMANDS:
    app.command()(_command)


@app.command()
def verify(
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="The job's name.")],
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="[CLUSTER:]TOPIC", help="An input topic of the job; repeat for several."),
    ],
    outputs: Annotated[
        list[str],
        typer.Option(
            "--output",
            metavar="[SYSTEM:]NAME",
            help="An output topic of the job; repeat for several. Or one table: SYSTEM, or SYSTEM:TABLE.",
        ),
    ],
    servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Bootstrap servers of one cluster for all topics.")
    ] = None,
    systems: Annotated[
        Path | None,
        typer.Option(
            "--systems",
            "--clusters",
            metavar="FILE",
            help="Systems by name, as for onceward serve; topics are then CLUSTER:TOPIC.",
        ),
    ] = None,
    expected_by: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Maps (topic, key, value) of an input record to a list of the same for its output, or to a list of "
            "rows for a table. Default: a copy; for a table, the JSON object of the value.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(metavar="COLUMN,...", help="Compare the rows of a table by these columns. Default: by all."),
    ] = "",
    key: Annotated[
        str,
        typer.Option(metavar="COLUMN,...", help="The sink replaces rows of a table by this key: the last one counts."),
    ] = "",
    delete: Annotated[
        str, typer.Option(metavar="COLUMN", help="The sink deletes the row of a key where this is true.")
    ] = "",
    from_earliest: Annotated[
        bool,
        typer.Option(
            "--from-earliest", help="The job began at offset 0. Needed if its first positions are no longer kept."
        ),
    ] = False,
    patience: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long to wait until everything is settled and nothing is open."
        ),
    ] = 30.0,
    no_order: Annotated[bool, typer.Option("--no-order", help="Do not compare the order per key.")] = False,
    at_least_once: Annotated[
        bool, typer.Option("--at-least-once", help="The sink delivers at least once: records may appear twice.")
    ] = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a job's output against its input: exactly once? Exit code 0 for PASS, 1 for FAIL, 10 for UNKNOWN."""
    try:
        from onceward.operate.verify.command import Wanted, run_verify
    except ImportError as error:
        raise not_installed("The comparison", error) from error
    wanted = Wanted(
        job=job,
        inputs=inputs,
        outputs=outputs,
        servers=servers,
        systems=systems,
        expected_by=expected_by,
        by=_columns(by),
        key=_columns(key),
        delete=delete,
        from_earliest=from_earliest,
        order=not no_order,
        at_least_once=at_least_once,
        patience_s=patience,
        as_json=as_json,
    )
    raise typer.Exit(run_verify(wanted, place_of(coordinator, state_dir)))


@app.command()
def doctor(
    servers: Annotated[
        str | None, typer.Option("--cluster", "--servers", metavar="HOST:PORT", help="Bootstrap servers of a cluster.")
    ] = None,
    clusters: Annotated[
        Path | None,
        typer.Option(
            "--systems", "--clusters", metavar="FILE", help="Systems by name, as for onceward serve; all are asked."
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "--table",
            metavar="[SYSTEM:]NAME",
            help="A topic or a table that jobs read or write; repeat for several.",
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Check the rights of this job at the systems.")] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master: starts one small task on each executor's cores.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="The store of a coordinator, as for onceward serve.")
    ] = None,
    store_password: Annotated[
        str | None, typer.Option(metavar="REFERENCE", help="Password for PostgreSQL: env:NAME or file:PATH.")
    ] = None,
    coordinator: CoordinatorOption = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Where a job would keep its store; default $ONCEWARD_STATE_DIR or ./.onceward."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check everything that jobs need, and name the remedy of what is missing. Changes nothing; exit code 1 for an
    error."""
    from onceward.operate.doctor.command import Asked, run_doctor

    asked = Asked(
        servers=servers,
        clusters=clusters,
        topics=topic or [],
        job=job,
        store=store,
        store_password=store_password,
        master=master,
        as_json=as_json,
    )
    raise typer.Exit(run_doctor(asked, place_of(coordinator, state_dir)))


@app.command("archive-classes")
def archive_classes() -> None:
    """Archive the classes of this Spark and Java, so that jobs start in about half the time. Prints the file."""
    try:
        from onceward.common.jvm.spark import write_archive

        print_result(str(write_archive()))
    except ImportError as error:
        raise not_installed("Spark", error) from error


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory for the project.")],
) -> None:
    """Begin a project of your own: a job, its settings, a Dockerfile, and a test on a local broker."""
    from onceward.operate.init import make_project

    make_project(directory)


@app.command()
def token(file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the token.")]) -> None:
    """Make a token for a client of a coordinator with --rights, and print its line for the rights file."""
    from onceward.operate.token import make_token

    make_token(file)


@app.command()
def health(
    coordinator: CoordinatorOption = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Also 0 for a coordinator that stands by and could lead.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Also 0 for a coordinator that cannot use its store: its process answers.")
    ] = False,
) -> None:
    """Check whether a coordinator accepts calls, for supervisors and containers: exit code 0 or 1."""
    from onceward.operate.health import run_health
    from onceward.wire.lead import LIVE, READY

    raise typer.Exit(run_health(coordinator or _DEFAULT_LISTEN, LIVE if live else READY if ready else ""))


def _columns(text: str) -> Sequence[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_plugged_in() -> None:
    """Add the commands of another distribution, `onceward-dev`, which may not be installed."""
    for plugged in entry_points(group="onceward.commands"):
        try:
            command = plugged.load()
        except ModuleNotFoundError as error:
            if not plugged.module.startswith(error.name or " "):
                raise
            app.command(plugged.name, context_settings=_ANY_ARGUMENTS)(_missing(plugged.name))
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=plugged.name)
        else:
            app.command(plugged.name)(command)


def _missing(name: str) -> Callable[[], None]:
    def command() -> None:
        raise ConfigurationError(
            f"onceward {name} is part of onceward[dev], which is not installed. Nothing was started. Install it with: "
            "pip install 'onceward[dev]'"
        )

    command.__doc__ = "Part of onceward-dev, which is not installed."
    return command


_add_plugged_in()


def main() -> None:
    """Entry point: an error of Onceward becomes one message on standard error and its exit code."""
    # warnings of a client while it retries
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="onceward: %(message)s")
    escape_logs()
    # kafka-python warns about its own steps that take a tenth of a second, which is normal on a busy machine
    logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
    try:
        app()
    except OncewardError as error:
        say(str(error))
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(128 + 2)
