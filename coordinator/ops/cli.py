"""The command ``onceward``. What a command needs is imported when it runs: serving needs neither Spark nor Kafka."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.errors import ConfigurationError, ExitCode, OncewardError

if TYPE_CHECKING:
    from coordinator.ops.connecting import Place

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

CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        "--coordinator", envvar="ONCEWARD_COORDINATOR", metavar="ADDRESS", help="HOST:PORT of a running onceward serve."
    ),
]
StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="Find the coordinator inside a running job through its directory: $ONCEWARD_STATE_DIR or ./.onceward.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
LimitOption = Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")]
NameOption = Annotated[str, typer.Option(help="A name for the savepoint, for people.")]
ClustersOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Ask these clusters, as of onceward serve; else what they say is unknown."),
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Only ask for it.")]


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
            help="Clusters to settle on for jobs whose driver is gone. Validated at the start and kept for that: "
            "this version does not yet settle by itself.",
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
    from coordinator.ops.serve import run_serve

    run_serve(
        listen=listen,
        store=store,
        clusters=clusters,
        reflection=reflection,
        anywhere=insecure_listen_anywhere,
        log_level=log_level,
    )


@app.command()
def jobs(coordinator: CoordinatorOption = None, state_dir: StateDirOption = None, as_json: JsonOption = False) -> None:
    """List all jobs. Exit code 7 when records were given up and nobody has acknowledged it; so for all listings."""
    from coordinator.ops.listings import list_jobs

    raise typer.Exit(list_jobs(_place(coordinator, state_dir), as_json=as_json))


@app.command()
def checkpoints(
    job: JobArgument,
    limit: LimitOption = 20,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a job's checkpoints, newest first, with how long they waited, ran, and took to decide and to settle."""
    from coordinator.ops.listings import list_checkpoints

    raise typer.Exit(list_checkpoints(job, limit, _place(coordinator, state_dir), as_json=as_json))


@app.command()
def history(
    job: JobArgument,
    limit: LimitOption = 20,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a job's generations and what happened to it, refused calls included, newest first."""
    from coordinator.ops.listings import list_history

    raise typer.Exit(list_history(job, limit, _place(coordinator, state_dir), as_json=as_json))


@app.command()
def checkpoint(
    job: JobArgument,
    no_wait: NoWaitOption = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Take a checkpoint now; prints its id when it is completed."""
    from coordinator.ops.wishes import take
    from coordinator.protocol.values import CheckpointKind

    take(job, _place(coordinator, state_dir), CheckpointKind.CHECKPOINT, wait=not no_wait)


@app.command()
def savepoint(
    job: JobArgument,
    name: NameOption = "",
    delete: Annotated[
        int | None, typer.Option(min=1, metavar="ID", help="Instead: this one is needed no longer.")
    ] = None,
    no_wait: NoWaitOption = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Take a checkpoint that is kept until it is deleted; prints its id when it is completed."""
    from coordinator.ops.wishes import delete_savepoint, take
    from coordinator.protocol.values import CheckpointKind

    place = _place(coordinator, state_dir)
    if delete is not None:
        if name or no_wait:
            raise ConfigurationError("--delete goes with neither --name nor --no-wait. Nothing was changed.")
        delete_savepoint(job, delete, place)
    else:
        take(job, place, CheckpointKind.SAVEPOINT, name=name, wait=not no_wait)


@app.command()
def stop(
    job: JobArgument,
    with_savepoint: Annotated[
        bool, typer.Option("--savepoint", help="Take one first; stop when it is completed. Prints its id.")
    ] = False,
    name: NameOption = "",
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Ask a job to finish and settle the running checkpoint and to leave. Does not wait for it to leave."""
    from coordinator.ops.wishes import stop_job, take
    from coordinator.protocol.values import CheckpointKind

    place = _place(coordinator, state_dir)
    if with_savepoint:
        take(job, place, CheckpointKind.SAVEPOINT, name=name, stop=True, wait=True)
    elif name:
        raise ConfigurationError("--name names a savepoint, so it goes with --savepoint. Nothing was changed.")
    else:
        stop_job(job, place)


@app.command()
def cancel(job: JobArgument, coordinator: CoordinatorOption = None, state_dir: StateDirOption = None) -> None:
    """Ask a job to abort the running checkpoint, to settle what is decided and to leave. Does not wait for it."""
    from coordinator.ops.wishes import cancel_job

    cancel_job(job, _place(coordinator, state_dir))


@app.command()
def restore(
    job: JobArgument,
    source: Annotated[int, typer.Option("--from", min=1, metavar="ID", help="A completed checkpoint or savepoint.")],
    reason: Annotated[str, typer.Option(help="Who wants it, and why; kept in the history.")],
    yes: Annotated[bool, typer.Option("--yes", help="Output repeats, and that is wanted.")] = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Have a stopped job begin with an older checkpoint when it is started next. Output after that one repeats."""
    from coordinator.ops.wishes import restore_job

    restore_job(job, source, reason, _place(coordinator, state_dir), yes=yes)


@app.command()
def transactions(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job's name; all jobs without it.")] = None,
    clusters: ClustersOption = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what is open, unsettled or in doubt: its owner, age, time left, and what is known about it."""
    from coordinator.ops.transactions import list_transactions

    list_transactions(job, _place(coordinator, state_dir), clusters, as_json=as_json)


@app.command()
def losses(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job's name; all jobs without it.")] = None,
    acknowledge: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Instead: you know of the losses of this one, or of all.")
    ] = None,
    reason: Annotated[str, typer.Option(help="With --acknowledge: who you are, and why; kept.")] = "",
    acknowledged: Annotated[bool, typer.Option("--all", help="Those too that somebody has acknowledged.")] = False,
    limit: LimitOption = 20,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List records that were given up, newest first; exit code 7 while one of them waits for being acknowledged."""
    from coordinator.ops.losses import acknowledge_losses, list_losses

    place = _place(coordinator, state_dir)
    if acknowledge is None:
        raise typer.Exit(list_losses(job, limit, place, acknowledged=acknowledged, as_json=as_json))
    if job is None or not reason:
        raise ConfigurationError("--acknowledge needs a JOB and a --reason. Nothing was changed.")
    acknowledge_losses(job, acknowledge, reason, place)


@app.command()
def resolve(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Who decides, and why; kept in the history.")],
    commit: Annotated[str | None, typer.Option(metavar="SLOTS", help="Have these count as committed.")] = None,
    give_up: Annotated[str | None, typer.Option(metavar="SLOTS", help="Have their records given up: a loss.")] = None,
    replay: Annotated[str | None, typer.Option(metavar="SLOTS", help="Have the next start write them again.")] = None,
    skip_input: Annotated[
        str | None, typer.Option(metavar="TOPIC:PARTITION", help="Instead: get past input that is gone.")
    ] = None,
    to: Annotated[int | None, typer.Option(min=0, metavar="OFFSET", help="Read on there; with --skip-input.")] = None,
    sink: Annotated[str | None, typer.Option(help="Whose slots; needed when several sinks wait.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Although the evidence says otherwise.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    clusters: ClustersOption = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Decide what a halted job cannot prove. SLOTS: numbers with commas, or all. The last resort."""
    from coordinator.ops.resolving import Wish, resolve_slots, slots_of
    from coordinator.ops.resolving import skip_input as skip
    from coordinator.protocol.requests import Ruling

    rulings = {Ruling.COMMITTED: commit, Ruling.GIVEN_UP: give_up, Ruling.REPLAY: replay}
    given = [(ruling, slots) for ruling, slots in rulings.items() if slots is not None]
    if len(given) + (skip_input is not None) != 1 or (skip_input is None) != (to is None):
        raise ConfigurationError(
            "Nothing was decided. Choose one of --commit, --give-up and --replay, or --skip-input together with --to."
        )
    place = _place(coordinator, state_dir)
    if skip_input is not None and to is not None:
        skip(job, skip_input, to, reason, place, yes=yes)
        return
    ruling, slots = given[0]
    wish = Wish(ruling=ruling, slots=slots_of(slots), sink=sink, reason=reason, forced=force, yes=yes)
    resolve_slots(job, wish, place, clusters)


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
            help="(topic, key, value) of an input record to its output records as (topic, key, value). Without it: a copy.",
        ),
    ] = None,
    from_earliest: Annotated[
        bool, typer.Option("--from-earliest", help="The job began at offset 0. Else its first checkpoint must be kept.")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="For a moment with everything settled and nothing open.")
    ] = 30.0,
    no_order: Annotated[bool, typer.Option("--no-order", help="Do not compare the order per key.")] = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a job's output with its input: exactly once? Exit code 0 for PASS, 1 for FAIL, 10 for UNKNOWN."""
    try:
        from coordinator.ops.verify.command import Wanted, run_verify
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
        patience_s=patience,
        as_json=as_json,
    )
    raise typer.Exit(run_verify(wanted, _place(coordinator, state_dir)))


@app.command()
def doctor(
    coordinator: CoordinatorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what this machine needs for jobs; with --coordinator, also whether it answers."""
    from coordinator.ops.doctor import run_doctor

    raise typer.Exit(run_doctor(coordinator, as_json=as_json))


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the flights are fed.")] = 90.0,
    limit: Annotated[int | None, typer.Option(help="Feed only so many flights.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A new directory for logs and store, kept.")] = None,
) -> None:
    """Watch real records go through Spark exactly once while processes are killed."""
    try:
        from coordinator.dev.demo.run import run_demo
    except ImportError as error:
        raise _not_installed("The demo", error) from error
    raise typer.Exit(run_demo(seconds=seconds, limit=limit, keep=keep))


@dev_app.command("kafka")
def dev_kafka(
    brokers: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    transaction_version: Annotated[int, typer.Option(min=0, max=2, help="The cluster's transaction.version.")] = 2,
    directory: Annotated[Path | None, typer.Option(help="Keep the data here.")] = None,
    port: Annotated[int | None, typer.Option(help="Of the first broker; by default a free one.")] = None,
) -> None:
    """Run a real Kafka on loopback until Ctrl-C; prints its bootstrap servers."""
    if brokers not in (1, 3):
        raise ConfigurationError(f"{brokers} brokers are not supported. Nothing was started. Use --brokers 1 or 3.")
    try:
        from coordinator.dev.kafka.command import run_dev_kafka
    except ImportError as error:
        raise _not_installed("The local Kafka", error) from error
    raise typer.Exit(run_dev_kafka(brokers, transaction_version, directory, port))


def main() -> None:
    """Entry point: errors of ours become one message on standard error, and their exit code."""
    try:
        app()
    except OncewardError as error:
        print(f"onceward: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(128 + 2)


def _place(coordinator: str | None, state_dir: Path | None) -> "Place":
    from coordinator.ops.connecting import Place

    return Place(coordinator=coordinator, state_dir=state_dir)


def _not_installed(what: str, error: ImportError) -> OncewardError:
    message = f"{what} needs packages that are not installed ({error.name}). Nothing was started. "
    problem = ConfigurationError(message + "Install them with: pip install 'onceward[spark]'")
    assert problem.exit_code is ExitCode.USAGE
    return problem
