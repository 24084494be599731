"""How a JVM of Spark starts: with the archive of Spark's classes, which halves the time and the work of its start, and
without the warnings that say nothing.

The archive holds for one Java and one set of Spark's jars, so it is kept with the Python environment that has them.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from onceward.common.errors import ConfigurationError
from onceward.common.jvm.archives import archive_option, archive_written, fingerprint, record_options

__all__ = ["archive_file", "light_start", "start_from_archive", "write_archive"]

_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Spark's launcher adds these options to those of the driver's JVM."""
_DIRECTORY = Path(sys.prefix, "share", "onceward")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LAUNCHER_OPTIONS = "SPARK_LAUNCHER_OPTS"
"""Options of the JVM that only puts the driver's command together."""
_FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""What the second compiler would make quicker in a short life is not worth its own time."""
_LOGGING_OPTIONS = (_OPTIONS, "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_TRAINING = "onceward.driver.spark.training"
_TRAINING_LIMIT_S = 600.0


def archive_file() -> Path:
    """The archive's path, whether it was written or not. Raises OSError if there is no Java or no Spark."""
    from pyspark.find_spark_home import _find_spark_home

    jars = Path(_find_spark_home(), "jars").glob("*.jar")
    return _DIRECTORY / f"spark-{fingerprint(jars)}.jsa"


def start_from_archive(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let a Spark that is started with these variables start from the archive, if one was written. Options for another
    archive stay as they are."""
    given = environment.get(_OPTIONS, "")
    if "-XX:SharedArchiveFile" in given or "-XX:ArchiveClassesAtExit" in given:
        return
    try:
        archive = archive_file()
    except OSError:
        return  # Spark says what is missing when it starts
    if archive.is_file():
        _add_options(environment, f'"{archive_option(archive)}"')


@contextlib.contextmanager
def light_start(*, scheduling: bool = False, environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Let a Spark that is started meanwhile with these variables start with little work, and without the warnings about
    the host's name and Hadoop's native library. What the user has configured stays in force.

    ``scheduling``: its JVM will only schedule tasks. No record goes through it, so the first compiler does for its
    whole life.
    """
    before = {name: environment.get(name) for name in (_OPTIONS, _LAUNCHER_OPTIONS)}
    environment.setdefault(_LAUNCHER_OPTIONS, _FIRST_COMPILER)
    try:
        if scheduling:
            environment[_OPTIONS] = f"{_FIRST_COMPILER} {before[_OPTIONS] or ''}".rstrip()  # the user's comes later
        if not _logging_is_configured(environment):
            _add_options(environment, f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                environment[name] = value
            else:
                environment.pop(name, None)


def _add_options(environment: MutableMapping[str, str], options: str) -> None:
    environment[_OPTIONS] = f"{environment.get(_OPTIONS, '')} {options}".lstrip()


def _logging_is_configured(environment: Mapping[str, str]) -> bool:
    from pyspark.find_spark_home import _find_spark_home

    if "LOG4J_CONFIGURATION_FILE" in environment:
        return True
    if any("log4j" in environment.get(name, "") for name in _LOGGING_OPTIONS):
        return True
    directory = Path(environment.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))
    if any(directory.glob("log4j2*")):
        return True
    try:
        defaults = (directory / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "log4j" in defaults or "structuredLogging" in defaults


def write_archive() -> Path:
    """Run a small job in a process of its own and archive the classes that it loads, unless there is an archive for
    this Java and this Spark. Takes half a minute.

    Raises ConfigurationError if Spark does not run or the archive cannot be kept.
    """
    try:
        archive = archive_file()
        if archive.is_file():
            return archive
        with archive_written(archive) as recorded:
            options = " ".join(f'"{option}"' for option in record_options(recorded))
            ran = subprocess.run(
                [sys.executable, "-m", _TRAINING],
                env={**os.environ, _OPTIONS: options},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TRAINING_LIMIT_S,
            )
            if ran.returncode != 0:
                raise ConfigurationError(
                    f"Spark does not run here, so its classes were not archived:\n{ran.stderr[-2000:].strip()}"
                )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(
            f"The archive of Spark's classes could not be written: {error}. Jobs start without it, only slower. It "
            f"takes 170 MB in {_DIRECTORY}: run the command as the owner of this Python environment."
        ) from error
    return archive
