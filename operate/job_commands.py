"""The commands about jobs and their coordinators. Each imports what it needs when it runs."""

from typing import Annotated

import typer

from onceward.common.errors import ConfigurationError
from onceward.operate.options import (
    ClustersOption,
    CoordinatorOption,
    JobArgument,
    JsonOption,
    LetterTopicOption,
    LimitOption,
    MaybeJobArgument,
    NameOption,
    NoWaitOption,
    ServersOption,
    StateDirOption,
    UtcOption,
    WatchOption,
    not_installed,
    place_of,
    view_of,
)

__all__ = ["COMMANDS"]


def jobs(
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    utc: UtcOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List all jobs. Exit code 7 while a loss is not acknowledged; the same for checkpoints, history and losses."""
    from onceward.operate.listings import list_jobs

    raise typer.Exit(list_jobs(place_of(coordinator, state_dir), view_of(as_json=as_json, utc=utc, watch=watch)))


def checkpoints(
    job: JobArgument,
    limit: LimitOption = 20,
    show: Annotated[
        int | None, typer.Option(min=1, metavar="ID", help="Show only this checkpoint as JSON, with its positions.")
    ] = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    utc: UtcOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List a job's checkpoints, newest first, with how long each of their steps took."""
    from onceward.operate.listings import list_checkpoints, show_checkpoint

    view = view_of(as_json=as_json, utc=utc, watch=watch)
    if show is not None:
        show_checkpoint(job, show, place_of(coordinator, state_dir))
        return
    raise typer.Exit(list_checkpoints(job, limit, place_of(coordinator, state_dir), view))


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once, also without a terminal.")] = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Show all jobs live, those in trouble first, until Ctrl-C. Exit code 7 while a loss is not acknowledged."""
    from onceward.operate.top import show_top

    raise typer.Exit(show_top(place_of(coordinator, state_dir), once=once))


def coordinators(
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    utc: UtcOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show which coordinator leads and which stand by, how fast the store is, certificates and options in force."""
    from onceward.operate.coordinators import show_coordinators

    view = view_of(as_json=as_json, utc=utc, watch=watch)
    raise typer.Exit(show_coordinators(place_of(coordinator, state_dir), view))


def history(
    job: JobArgument,
    limit: LimitOption = 20,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    utc: UtcOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List a job's generations and its events, including refused calls, newest first."""
    from onceward.operate.listings import list_history

    view = view_of(as_json=as_json, utc=utc, watch=watch)
    raise typer.Exit(list_history(job, limit, place_of(coordinator, state_dir), view))


def state(
    job: JobArgument,
    operator: Annotated[
        int | None, typer.Option(min=0, metavar="ID", help="Show the state of this operator, as listed without it.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of Spark's state data source, for example joinSide=left."),
    ] = None,
    limit: LimitOption = 20,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the stateful operators of a job's Structured Streaming query, or show rows of one. Starts Spark."""
    from onceward.operate.state import list_operators, show_state

    place = place_of(coordinator, state_dir)
    if operator is None:
        list_operators(job, place, as_json=as_json)
        return
    for text in option or ():
        if "=" not in text:
            raise ConfigurationError(f"--option: {text!r} is not NAME=VALUE. Nothing was read.")
    options = dict(text.split("=", 1) for text in option or ())
    show_state(job, place, operator, options, limit, as_json=as_json)


def checkpoint(
    job: JobArgument,
    no_wait: NoWaitOption = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Take a checkpoint now; prints its id when it is completed."""
    from onceward.operate.operator_requests import take
    from onceward.protocol.values import CheckpointKind

    take(job, place_of(coordinator, state_dir), CheckpointKind.CHECKPOINT, wait=not no_wait)


def savepoint(
    job: JobArgument,
    name: NameOption = "",
    delete: Annotated[
        str | None, typer.Option(metavar="ID", help="Delete this savepoint, by id or name, instead.")
    ] = None,
    no_wait: NoWaitOption = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Take a checkpoint that is kept until it is deleted; prints its id when it is completed."""
    from onceward.operate.operator_requests import delete_savepoint, take
    from onceward.protocol.values import CheckpointKind

    place = place_of(coordinator, state_dir)
    if delete is not None:
        if name or no_wait:
            raise ConfigurationError("--delete goes with neither --name nor --no-wait. Nothing was changed.")
        delete_savepoint(job, delete, place)
    else:
        take(job, place, CheckpointKind.SAVEPOINT, name=name, wait=not no_wait)


def stop(
    job: JobArgument,
    with_savepoint: Annotated[
        bool, typer.Option("--savepoint", help="Take a savepoint first, print its id, stop when it is completed.")
    ] = False,
    name: NameOption = "",
    no_wait: NoWaitOption = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Stop a job after it has settled the running checkpoint; waits for that. Ctrl-C ends only the wait."""
    from onceward.operate.operator_requests import stop_job, take
    from onceward.protocol.values import CheckpointKind

    place = place_of(coordinator, state_dir)
    if with_savepoint:
        take(job, place, CheckpointKind.SAVEPOINT, name=name, stop=True, wait=not no_wait)
    elif name:
        raise ConfigurationError("--name names a savepoint, so it goes with --savepoint. Nothing was changed.")
    else:
        stop_job(job, place, wait=not no_wait)


def cancel(job: JobArgument, coordinator: CoordinatorOption = None, state_dir: StateDirOption = None) -> None:
    """Cancel a job: it aborts the running checkpoint, settles what is decided and leaves. Does not wait."""
    from onceward.operate.operator_requests import cancel_job

    cancel_job(job, place_of(coordinator, state_dir))


def restore(
    job: JobArgument,
    source: Annotated[
        str, typer.Option("--from", metavar="ID", help="A completed checkpoint or savepoint, or a savepoint's name.")
    ],
    reason: Annotated[str, typer.Option(help="Your name and the reason; the history keeps both.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: repeated output is intended.")] = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Start a stopped job from an older checkpoint next time. Output after that checkpoint repeats."""
    from onceward.operate.operator_requests import restore_job

    restore_job(job, source, reason, place_of(coordinator, state_dir), yes=yes)


def takeover(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Who wants it, and why; kept in the history.")],
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Let the next driver replace the live one, once, instead of waiting for its lease. The old one is fenced."""
    from onceward.operate.permissions import permit_takeover

    permit_takeover(job, reason, place_of(coordinator, state_dir))


def adopt(
    job: JobArgument,
    claim: Annotated[
        str, typer.Option(metavar="STORE:GENERATION:CHECKPOINT", help="The claim, as the refused start named it.")
    ],
    reason: Annotated[str, typer.Option(help="Who wants it, and why; kept in the history.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Let a job start from this store although the sink's cluster says that another one, or a newer copy, owns it."""
    from onceward.operate.permissions import permit_adoption

    permit_adoption(job, claim, reason, place_of(coordinator, state_dir), yes=yes)


def transactions(
    job: MaybeJobArgument = None,
    clusters: ClustersOption = None,
    hanging: Annotated[
        bool, typer.Option("--hanging", help="List transactions of any program that are over and hold readers back.")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="CLUSTER:TOPIC", help="With --hanging: look only into this topic; repeat for several."),
    ] = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions that are open, unsettled or in doubt: owner, age, time left, and what is known about each."""
    if hanging:
        from onceward.operate.doctor.clusters import named_clusters
        from onceward.operate.hanging import list_hanging

        if job is not None or clusters is None:
            raise ConfigurationError(
                "--hanging asks brokers about all programs: it needs --systems FILE, and takes no JOB. Nothing was "
                "listed."
            )
        list_hanging(named_clusters("transactions", None, clusters, topic or []), as_json=as_json)
        return
    if topic:
        raise ConfigurationError("--topic goes with --hanging. Nothing was listed.")
    from onceward.operate.transactions import list_transactions

    list_transactions(job, place_of(coordinator, state_dir), clusters, as_json=as_json)


def losses(
    job: MaybeJobArgument = None,
    acknowledge: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Acknowledge the losses of this checkpoint, or of all.")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="With --acknowledge: your name and the reason; the history keeps both.")
    ] = "",
    acknowledged: Annotated[bool, typer.Option("--all", help="Include acknowledged losses.")] = False,
    limit: LimitOption = 20,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    utc: UtcOption = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List records that were given up, newest first; exit code 7 while a loss is not acknowledged."""
    from onceward.operate.losses import acknowledge_losses, list_losses

    place, view = place_of(coordinator, state_dir), view_of(as_json=as_json, utc=utc, watch=watch)
    if acknowledge is None:
        raise typer.Exit(list_losses(job, limit, place, view, acknowledged=acknowledged))
    if job is None or not reason:
        raise ConfigurationError("--acknowledge needs a JOB and a --reason. Nothing was changed.")
    acknowledge_losses(job, acknowledge, reason, place)


def letters(
    job: JobArgument,
    servers: ServersOption = None,
    clusters: ClustersOption = None,
    topic: LetterTopicOption = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
    utc: UtcOption = False,
    as_json: JsonOption = False,
) -> None:
    """List a job's dead letters by reason, the commonest first, with the newest records of each."""
    try:
        from onceward.operate.letters import list_letters
    except ImportError as error:
        raise not_installed("Reading letters", error) from error
    place = place_of(coordinator, state_dir)
    list_letters(job, place, servers, clusters, topic, as_json=as_json, utc=utc)


def redrive(
    job: JobArgument,
    kind: Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Only letters of this class.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only letters written since then; ISO 8601.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Only letters that this output has refused.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Leave records that have failed so often.")] = 3,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go back, and what would stay.")
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Drop them instead: they never go back.")] = False,
    reason: Annotated[str, typer.Option(help="With --drop: your name and the reason, which are kept.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="With --drop: do not ask.")] = False,
    servers: ServersOption = None,
    clusters: ClustersOption = None,
    topic: LetterTopicOption = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Bring a job's dead letters back into its input, each once, by a job of their own. Starts Spark."""
    try:
        from onceward.operate.redriving import Asked
        from onceward.operate.redriving import redrive as bring_back
    except ImportError as error:
        raise not_installed("Reading letters", error) from error
    asked = Asked(
        job=job,
        servers=servers,
        systems=clusters,
        topic=topic,
        kind=kind,
        output=output,
        since=since,
        attempts=attempts,
        dry_run=dry_run,
        drop=drop,
        reason=reason,
        yes=yes,
    )
    bring_back(asked, place_of(coordinator, state_dir))


def resolve(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Your name and the reason; the history keeps both.")],
    commit: Annotated[str | None, typer.Option(metavar="SLOTS", help="Slots to count as committed.")] = None,
    give_up: Annotated[
        str | None, typer.Option(metavar="SLOTS", help="Slots whose records to give up: a loss.")
    ] = None,
    replay: Annotated[str | None, typer.Option(metavar="SLOTS", help="Slots that the next start replays.")] = None,
    skip_input: Annotated[
        str | None, typer.Option(metavar="TOPIC:PARTITION", help="Move this partition past deleted input instead.")
    ] = None,
    to: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="With --skip-input: the offset to continue at.")
    ] = None,
    sink: Annotated[str | None, typer.Option(help="The sink of the slots; needed when several sinks wait.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Decide against the evidence, or without it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    clusters: ClustersOption = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Decide what a halted job cannot prove. SLOTS: comma-separated numbers, or all. Use only as a last resort."""
    from onceward.operate.resolving import Resolution, resolve_slots, slots_of
    from onceward.operate.skipping import skip_input as skip
    from onceward.protocol.requests import Ruling

    rulings = {Ruling.COMMITTED: commit, Ruling.GIVEN_UP: give_up, Ruling.REPLAY: replay}
    given = [(ruling, slots) for ruling, slots in rulings.items() if slots is not None]
    if len(given) + (skip_input is not None) != 1 or (skip_input is None) != (to is None):
        raise ConfigurationError(
            "Nothing was decided. Choose one of --commit, --give-up and --replay, or --skip-input together with --to."
        )
    place = place_of(coordinator, state_dir)
    if skip_input is not None and to is not None:
        skip(job, skip_input, to, reason, place, yes=yes)
        return
    ruling, slots = given[0]
    resolution = Resolution(ruling=ruling, slots=slots_of(slots), sink=sink, reason=reason, forced=force, yes=yes)
    resolve_slots(job, resolution, place, clusters)


def close(
    job: JobArgument,
    output: Annotated[str, typer.Argument(help="Name of an output that the job no longer has.")],
    reason: Annotated[str, typer.Option(help="Your name and the reason; the history keeps both.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    clusters: ClustersOption = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Close an output that a job no longer has: end what it left open, remove its claim and receipts."""
    from onceward.operate.closing import close_output

    close_output(job, output, reason, place_of(coordinator, state_dir), clusters, yes=yes)


def forget(
    job: JobArgument,
    reason: Annotated[str, typer.Option(help="Your name and the reason; the coordinator logs both.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    clusters: ClustersOption = None,
    coordinator: CoordinatorOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Delete a job that has ended and is settled: its checkpoints, history, receipts and claim."""
    from onceward.operate.forgetting import forget_job

    forget_job(job, reason, place_of(coordinator, state_dir), clusters, yes=yes)


COMMANDS = (
    jobs,
    top,
    checkpoints,
    coordinators,
    history,
    state,
    checkpoint,
    savepoint,
    stop,
    cancel,
    restore,
    takeover,
    adopt,
    transactions,
    losses,
    letters,
    redrive,
    resolve,
    close,
    forget,
)
"""In the order of the help."""
