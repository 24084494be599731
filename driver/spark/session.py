"""Spark: created or checked, never changed. Ships Onceward's code and proves that executors run it."""

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward.common.errors import PreflightError
from onceward.common.jvm.spark import light_start, start_from_archive
from onceward.connectors.interfaces import Finding, Severity
from onceward.connectors.slots import Library, NeedsLibraries
from onceward.driver.runtime import THREADS
from onceward.executor.daemon import DAEMON, can_start

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_PACKAGE = "onceward"
_PROBED_MODULES = (
    "onceward.executor.functions",
    "onceward.connectors.tasks",
    "onceward.common.killpoints",
)

ALWAYS = (Library("confluent_kafka", "2.16.1", "onceward[spark]"), Library("pyarrow", "18", "onceward[spark]"))
"""What executors of each job need, as in pyproject.toml."""

_SOCKET_PATH_BYTES = 104
"""The shortest limit of the systems that Spark runs on (macOS; Linux has 108)."""
_SOCKET_NAME_BYTES = 48
"""Spark's names consist of a dot, a UUID and a suffix."""

_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
_UNIX_SOCKETS_SINCE = (4, 1)
"""SPARK-51688."""

_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
_FORGIVING = "spark.stage.ignoreDecommissionFetchFailure"
_LOG_FAILURES = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")
"""The loggers of Spark that log each failure of a task."""
_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_CHECKSUMS_SINCE = (4, 1)
_PUSH = "spark.shuffle.push.enabled"

_DAEMON = "spark.python.daemon.module"
_PROGRESS_BARS = "spark.ui.showConsoleProgress"

_CONNECT = Finding(
    severity=Severity.ERROR,
    subject="Spark session",
    message="it is a Spark Connect session; checkpoints need the driver's SparkContext",
    fix="run the program with a classic session (spark-submit, or SparkSession.builder.master(...))",
)
_CONNECT_VARIABLES = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}
"""With them, PySpark makes sessions of Spark Connect."""

_OF_FIRST_CALL = "pyspark.testing.utils"
"""PySpark imports it with its first call into the JVM, and pandas with it: half a second."""

_launching = threading.Lock()
"""It changes the environment for a moment."""

_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_DEFAULTS = {
    **_LOOPBACK,
    "spark.ui.enabled": "false",
    _PROGRESS_BARS: "false",
    "spark.locality.wait": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # Limits what reaches the writer at once; 20,000 records of 100 KB would be 2 GB.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.log.level": "WARN",
}


class Spark:
    """Spark's context, and the session on it: made when it is first needed, because to load Spark SQL takes a second.
    Tasks without DataFrames need none."""

    def __init__(self, context: "SparkContext") -> None:
        self.context = context

    @classmethod
    def of(cls, session: "SparkSession") -> "Spark":
        spark = cls(session.sparkContext)
        spark.session = session
        return spark

    @cached_property
    def session(self) -> "SparkSession":
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()


def make_session(job: str, master: str = "") -> "tuple[SparkSession, bool]":
    """Return a session, and whether it was created here and must be stopped here; else as :func:`make_context`."""
    context, made = make_context(job, master)
    return Spark(context).session, made


def make_context(job: str, master: str = "", *, scheduling: bool = False) -> "tuple[SparkContext, bool]":
    """Return a context, and whether it was created here and must be stopped here.

    A context that already runs in this process is used unchanged. Otherwise one is created with Onceward's defaults,
    which never override spark-submit or spark-defaults.conf.

    :param master: instead of any other. Executors elsewhere must reach the driver, so it then listens as Spark says.
    :param scheduling: no records will go through the JVM.
    """
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    if active is not None and _has_stopped(active):
        active.stop()  # PySpark has not noticed, and would keep returning it
    elif active is not None:
        return active, False
    launch(scheduling=scheduling)
    conf = _given_configuration()
    defaults = {**_DEFAULTS, **_safe_retries(), **_unix_sockets()}
    if master:
        conf.setMaster(master)
        if not master.startswith("local"):
            defaults = {key: value for key, value in defaults.items() if key not in _LOOPBACK}
    elif not conf.contains("spark.master"):
        # local mode retries tasks only if the second number allows it
        conf.setMaster("local[*,4]")
    workers_are_here = conf.get("spark.master").startswith("local")
    if workers_are_here and not conf.contains("spark.pyspark.python") and can_start():
        defaults[_DAEMON] = DAEMON
    if not conf.contains("spark.app.name"):
        conf.setAppName(f"onceward {job}")
    for key, value in defaults.items():
        # without spark-submit, PySpark starts as a shell, and Spark itself switches a shell's progress bars on
        shells = key == _PROGRESS_BARS and "PYSPARK_GATEWAY_PORT" not in os.environ
        if shells or not conf.contains(key):
            conf.set(key, value)
    return SparkContext(conf=conf), True


def launch(*, scheduling: bool = False) -> None:
    """Launch Spark's JVM, if none runs. It takes a second, and ends with this process.

    :param scheduling: no records will go through the JVM.
    """
    from pyspark import SparkContext

    with _launching:
        if SparkContext._gateway is not None:
            return
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        THREADS.beside(lambda: import_module(_OF_FIRST_CALL))
        start_from_archive()
        with light_start(scheduling=scheduling):
            SparkContext._ensure_initialized()


def _has_stopped(context: Any) -> bool:
    """True when Spark has ended the context on its own: a cluster's master may remove the application."""
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def _unix_sockets() -> dict[str, str]:
    """Return the setting for Unix sockets between JVM and Python. They save 40 ms per small Python task, the time by
    which Linux delays a TCP acknowledgement (measured on 2 cores: 2 empty tasks took 15 ms instead of 59). Spark
    creates them in the JVM's temporary directory; if its path is too long they cannot be bound, and TCP remains."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    directory = jvm.java.lang.System.getProperty("java.io.tmpdir")
    fits = len(directory) + _SOCKET_NAME_BYTES < _SOCKET_PATH_BYTES
    return {_UNIX_SOCKETS: "true"} if fits else {}


def _safe_retries() -> dict[str, str]:
    """Return the settings that satisfy :func:`check_retries` in this Spark version."""
    import pyspark

    if _version(pyspark.__version__) >= _CHECKSUMS_SINCE:
        return dict.fromkeys(_CHECKSUMS, "true")
    return {_ATTEMPTS: "1", _FORGIVING: "false"}


def _given_configuration() -> Any:
    """Return the settings of spark-submit and spark-defaults.conf. Starts a JVM: PySpark reads them only through
    one."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf()


def check_submission(*, embedded: bool) -> list[Finding]:
    """Check the environment, and the settings of spark-submit if the program was submitted, before anything starts."""
    if os.environ.keys() & _CONNECT_VARIABLES:
        return [_CONNECT]
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return []
    return _check_configuration(_given_configuration(), embedded=embedded)


def check_session(spark: Any, *, embedded: bool) -> list[Finding]:
    """Return what makes a session unusable for exactly-once."""
    if not hasattr(spark, "_jsparkSession"):
        return [_CONNECT]
    return check_context(spark.sparkContext, embedded=embedded)


def check_context(context: Any, *, embedded: bool) -> list[Finding]:
    """Return what makes a context unusable for exactly-once."""
    conf = context.getConf()
    return _check_configuration(conf, embedded=embedded) + _check_sockets(conf, context.version)


def is_on(conf: Any, name: str, default: str = "false") -> bool:
    """True when a setting in ``conf``, a SparkConf, is true; upper or lower case."""
    return bool(conf.get(name, default).lower() == "true")


def _check_sockets(conf: Any, version: str) -> list[Finding]:
    """Check an existing session. A session that is created here has Unix sockets wherever they are possible."""
    enabled = is_on(conf, _UNIX_SOCKETS, os.environ.get("PYSPARK_UDS_MODE", "false"))
    if enabled or _version(version) < _UNIX_SOCKETS_SINCE:
        return []
    return [
        Finding(
            severity=Severity.WARNING,
            subject=_UNIX_SOCKETS,
            message="it is not true: each small Python task takes some 40 ms longer",
            fix="set it to true before the session is made (spark.python.unix.domain.socket.dir: a short path)",
        )
    ]


def check_retries(spark: Any) -> list[Finding]:
    """Check a session whose job moves rows between tasks.

    When shuffle files are lost, Spark computes them again, and only tasks that have not voted yet read the new files.
    If the plan does not put each row in the same place again (random values, a UDF, rows in another order), a row then
    appears in two slots or in none, and all slots vote (SPARK-38388). Spark detects this by checksums in versions that
    have them; in other versions, a stage that has lost its input must fail.
    """
    conf = spark.sparkContext.getConf()
    if conf.get(_ATTEMPTS, "4") == "1" and not is_on(conf, _FORGIVING, "true"):
        return []
    checked = _version(spark.version) >= _CHECKSUMS_SINCE
    # with push-based shuffle Spark omits the checksums (SPARK-54959)
    if checked and not is_on(conf, _PUSH) and all(spark.conf.get(name).lower() == "true" for name in _CHECKSUMS):
        return []
    remedy = f"set {_ATTEMPTS}=1 and {_FORGIVING}=false before the session is made"
    if checked:
        remedy += f", or {' and '.join(f'{name}=true' for name in _CHECKSUMS)} without {_PUSH}"
    return [
        Finding(
            severity=Severity.ERROR,
            subject="shuffle",
            message="the transform moves rows between tasks, and when shuffle files are lost this Spark session may "
            "compute them again for some tasks only: records would be lost or doubled unnoticed",
            fix=remedy,
        )
    ]


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _check_configuration(conf: Any, *, embedded: bool) -> list[Finding]:
    findings = []
    if is_on(conf, "spark.speculation"):
        findings.append(
            Finding(
                severity=Severity.ERROR,
                subject="spark.speculation",
                message="it is true: a second copy of a task would write the same records in another transaction",
                fix="set spark.speculation=false",
            )
        )
    if embedded and conf.get("spark.submit.deployMode", "client") == "cluster":
        findings.append(
            Finding(
                severity=Severity.ERROR,
                subject="spark.submit.deployMode",
                message="it is cluster: the embedded coordinator's directory would be lost with the driver's machine",
                fix="start `onceward serve` where its store is kept and set Pipeline(coordinator=...), or use client",
            )
        )
    if conf.get("spark.python.worker.reuse", "true").lower() == "false":
        findings.append(
            Finding(
                severity=Severity.WARNING,
                subject="spark.python.worker.reuse",
                message="it is false: every task starts a Python process and new connections",
                fix="leave it at true",
            )
        )
    return findings


def check_closures(conf: Any) -> list[Finding]:
    """Return what lets others read what Spark sends to staying tasks: their secret is in it."""
    if str(conf.get("spark.master", "local")).startswith("local"):
        return []
    sasl = is_on(conf, "spark.network.crypto.enabled") or is_on(conf, "spark.authenticate.enableSaslEncryption")
    if (is_on(conf, "spark.authenticate") and sasl) or is_on(conf, "spark.ssl.rpc.enabled"):
        return []
    return [
        Finding(
            severity=Severity.WARNING,
            subject="spark.network.crypto.enabled",
            message="Spark's own connections are not encrypted, and the secret by which staying tasks prove themselves "
            "passes over them: a process that reads the network could vote in the place of a task",
            fix="set spark.authenticate and spark.network.crypto.enabled to true, or use a network that only trusted "
            "machines reach",
        )
    ]


def ship(spark: Spark, parts: Sequence[object] = (), *, arrow: bool) -> Path:
    """Send Onceward's modules to all executors, then run one task that proves which code and libraries they have.
    Return the archive that was sent.

    ``parts``: reader and writers. They name the libraries that they need; and a user's own folder ``sinks`` would take
    precedence over the shipped one, in which their modules are. ``arrow``: checkpoints go through Arrow and the JVM.
    The proof then takes the same way: Spark keeps separate worker processes for each way, and what the proof loads
    stays loaded for the checkpoints.

    Raises PreflightError that names everything missing, too old, or different from the driver's code.
    """
    context: Any = spark.context
    # the context's own directory: executors fetch the archive from it as long as the context lives
    sources = dict(_sources())
    archive = Path(context._temp_dir) / f"onceward-{_digest_of(sources)[:12]}.zip"
    if not archive.exists():
        with zipfile.ZipFile(archive, "w") as file:
            for name, source in sources.items():
                file.writestr(name, source)
        context.addPyFile(str(archive))
    modules = (type(part).__module__ for part in parts)
    ours = dict.fromkeys(module for module in modules if module.split(".")[0] == _PACKAGE)
    expected = {name: _digest(name) for name in (*_PROBED_MODULES, *ours)}
    needed = (one for part in parts if isinstance(part, NeedsLibraries) for one in part.libraries)
    libraries = tuple(dict.fromkeys((*ALWAYS, *needed)))
    probe = _probe_task(tuple(one.module for one in libraries), tuple(expected))
    failure: Exception | None = None
    try:
        probes = _ask_through_arrow(spark.session, probe) if arrow else _ask_plainly(context, probe)
    except Exception as error:
        if not arrow:
            raise
        # raised below unless the probe finds the reason, for example a missing library that Arrow needs
        failure, probes = error, _ask_plainly(context, probe)
    problems = sorted({problem for found in probes for problem in _problems(found, libraries, expected)})
    if problems:
        packages = " ".join(dict.fromkeys(f"'{one.package}'" for one in libraries))
        raise PreflightError(
            "Executors cannot run this job; nothing was started:\n  "
            + "\n  ".join(problems)
            + f"\n  fix: pip install {packages} for the executors' Python (PYSPARK_PYTHON), and rename folders of your "
            + f"own that are called {_PACKAGE}"
        )
    if failure is not None:
        raise failure
    return archive


def ask_executors(spark: "SparkSession", libraries: Sequence[Library] = ()) -> list[dict[str, str]]:
    """Run one small task on every core; return what each found: the version of ``python``, of each module that jobs
    need and of those of ``libraries``, or ``missing: ...``."""
    return _ask_plainly(spark.sparkContext, _probe_task(_modules(libraries), ()))


def versions_here(libraries: Sequence[Library] = ()) -> dict[str, str]:
    """Return the same of this process."""
    (found,) = _probe_task(_modules(libraries), ())(None)
    return dict(found)


def _modules(libraries: Sequence[Library]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.module for one in (*ALWAYS, *libraries)))


def lacks(library: str, version: str, libraries: Sequence[Library] = ALWAYS) -> str:
    """Say why executors cannot work with this version of a module; empty if they can."""
    if version.startswith("missing"):
        return f"{library} is {version}"
    least = next((one.least for one in libraries if one.module == library), None)
    if least is not None and _release(version) < _release(least):
        return f"{library} is {version}, at least {least} is needed"
    return ""


def _ask_through_arrow(
    spark: "SparkSession", probe: "Callable[[object], Iterator[dict[str, str]]]"
) -> list[dict[str, str]]:
    # pickled by value too, so it imports what it uses
    def through_arrow(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import json

        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"found": [json.dumps(one) for one in probe(list(batches))]})

    tasks = max(1, spark.sparkContext.defaultParallelism)
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(through_arrow, "found string").collect()
    return [json.loads(row[0]) for row in rows]


def _ask_plainly(
    context: "SparkContext", probe: "Callable[[object], Iterator[dict[str, str]]]"
) -> list[dict[str, str]]:
    tasks = max(1, context.defaultParallelism)
    found: list[dict[str, str]] = context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()
    return found


def _probe_task(libraries: tuple[str, ...], modules: tuple[str, ...]) -> Any:
    # Defined inside a function so that it is pickled by value: it must run where Onceward's modules may be missing.
    def probe(_: object) -> Iterator[dict[str, str]]:
        import hashlib
        import platform
        from importlib import import_module

        found = {"python": ".".join(platform.python_version_tuple()[:2])}
        for name in libraries:
            try:
                found[name] = str(import_module(name).__version__)
            except Exception as error:  # noqa: BLE001 - whatever keeps a module from loading is the answer
                found[name] = f"missing: {error!r}"
        for name in modules:
            try:
                module: Any = import_module(name)
                content = module.__loader__.get_data(module.__file__)
                found[name] = hashlib.sha256(content).hexdigest()
                found[f"file of {name}"] = str(module.__file__)
            except Exception as error:  # noqa: BLE001 - whatever keeps a module from loading is the answer
                found[name] = f"missing: {error!r}"
        yield found

    return probe


def _problems(probe: dict[str, str], libraries: Sequence[Library], expected: dict[str, str]) -> Iterator[str]:
    yield from filter(None, (lacks(one.module, probe[one.module], libraries) for one in libraries))
    missing = {probe[one.module] for one in libraries if probe[one.module].startswith("missing")}
    for name, digest in expected.items():
        if probe[name] in missing:
            continue  # it imports the library
        if probe[name].startswith("missing"):
            yield f"{name} is {probe[name]}"
        elif probe[name] != digest:
            yield f"{name} comes from {probe[f'file of {name}']}, which is other code than the driver's"


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.16.1rc1`` -> (2, 16, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _sources() -> Iterator[tuple[str, bytes]]:
    root = Path(str(import_module(_PACKAGE).__file__)).parent
    # in a checkout the folders are symbolic links, which Path.rglob does not follow
    for directory, folders, files in os.walk(root, followlinks=True):
        folders.sort()
        for path in sorted(Path(directory, name) for name in files if name.endswith(".py")):
            yield f"{_PACKAGE}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _digest_of(sources: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name, source in sources.items():
        total.update(name.encode() + b"\0" + source)
    return total.hexdigest()


def _digest(module: str) -> str:
    loaded: Any = import_module(module)
    return hashlib.sha256(loaded.__loader__.get_data(loaded.__file__)).hexdigest()


@contextlib.contextmanager
def failures_unlogged(context: Any) -> Iterator[None]:
    """Let Spark log no failures of tasks meanwhile. A search for a record makes tasks fail on purpose, and each failure
    would be logged with the traces of both languages."""
    log4j: Any = context._jvm.org.apache.logging.log4j
    before = {name: log4j.LogManager.getLogger(name).getLevel() for name in _LOG_FAILURES}
    try:
        for name in _LOG_FAILURES:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
        yield
    finally:
        with contextlib.suppress(Exception):  # a JVM that is gone logs nothing
            for name, level in before.items():
                log4j.core.config.Configurator.setLevel(name, level)


def is_alive(context: Any) -> bool:
    """False when the JVM behind ``context`` is gone."""
    try:
        return not bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - py4j has many errors for a JVM that is gone
        return False
