"""How a JVM of Spark starts: with the archive of Spark's classes, which halves the time and the work of its start, and
without the warnings that say nothing.

The archive holds for one Java and one set of Spark's jars, so it is kept with the Python environment that has them.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.jvm.archives import archive_option, archive_written, fingerprint, record_options

__all__ = ["archive_file", "quiet_start", "start_from_archive", "write_archive"]

_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Spark's launcher adds these options to those of the driver's JVM."""
_DIRECTORY = Path(sys.prefix, "share", "onceward")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LOGGING_OPTIONS = (_OPTIONS, "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_TRAINING = "onceward.coordinator.pipeline.training"
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
        environment[_OPTIONS] = f'{given} "{archive_option(archive)}"'.lstrip()


@contextlib.contextmanager
def quiet_start(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Let a Spark that is started meanwhile with these variables log without the warnings about the host's name and
    Hadoop's native library. A configuration of its logging by the user stays in force."""
    given = environment.get(_OPTIONS)
    if not _logging_is_configured(environment):
        environment[_OPTIONS] = f"{given or ''} -Dlog4j2.configurationFile={_LOGGING.as_uri()}".lstrip()
    try:
        yield
    finally:
        if given is not None:
            environment[_OPTIONS] = given
        else:
            environment.pop(_OPTIONS, None)


def _logging_is_configured(environment: MutableMapping[str, str]) -> bool:
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
