"""What Spark's executors have, found by one small task on each of their cores."""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence

from onceward.connectors.slots import Library
from onceward.operate.doctor.check import Check, Level

__all__ = ["check_executors", "judged"]

_LIMIT_S = 120.0
_NAMES = {"python": "Python", "confluent_kafka": "confluent-kafka"}
"""Where a module's name is not what people call it."""
_SPARK = "onceward[spark]"


def check_executors(master: str, libraries: Mapping[Library, str]) -> Iterator[Check]:
    """Start a Spark application, ask, and end it. Yield one line for each version of each library.

    :param master: as Spark's own ``--master``.
    :param libraries: what a job also needs, and for what.
    """
    try:
        from onceward.driver.spark.session import ask_executors, make_session, versions_here

        session, _ = make_session("doctor", master)
    except ImportError as error:
        remedy = "pip install 'onceward[spark]'"
        yield Check(subject="executors", found=f"Spark cannot be loaded: {error}", level=Level.ERROR, remedy=remedy)
        return
    except Exception as error:  # noqa: BLE001 - Spark and Java have many errors, and each is the answer
        remedy = "correct the URL, or start what it names; Spark's own lines say more"
        yield Check(subject="executors", found=_said(error), level=Level.ERROR, remedy=remedy)
        return
    late = threading.Timer(_LIMIT_S, session.sparkContext.cancelAllJobs)
    late.daemon = True
    late.start()
    try:
        yield from judged(ask_executors(session, [*libraries]), versions_here([*libraries]), libraries)
    except Exception as error:  # noqa: BLE001 - as above
        yield _failed(error, in_time=late.is_alive())
    finally:
        late.cancel()
        session.stop()


def judged(
    probes: Sequence[Mapping[str, str]], here: Mapping[str, str], libraries: Mapping[Library, str]
) -> Iterator[Check]:
    """Compare what the tasks found with the driver's ``here``."""
    from onceward.driver.spark.session import ALWAYS, lacks

    needed = (*ALWAYS, *(one for one in libraries if one not in ALWAYS))
    packages = {"python": _SPARK, **{one.module: one.package for one in needed}}
    used = {one.module: f" for {systems}" for one, systems in libraries.items() if one not in ALWAYS}
    for module, package in packages.items():
        for found in sorted({probe[module] for probe in probes}):
            subject = f"executors: {_NAMES.get(module, module)}{used.get(module, '')}"
            if lack := lacks(module, found, needed):
                yield Check(subject=subject, found=lack, level=Level.ERROR, remedy=_install(package))
            elif found == here[module]:
                yield Check(subject=subject, found=f"{found}, as here")
            else:
                yield Check(
                    subject=subject,
                    found=f"{found}, and {here[module]} here",
                    level=Level.WARNING,
                    remedy="install the same version on both sides: tests here say little about executors",
                )


def _failed(error: Exception, *, in_time: bool) -> Check:
    if not in_time:
        found = f"none ran a task within {_LIMIT_S:.0f} s"
        remedy = "give the master workers with free cores and memory, from which this machine can be reached"
        return Check(subject="executors", found=found, level=Level.ERROR, remedy=remedy)
    # Spark itself refuses another minor version of Python, by this name.
    mismatch = next((line.strip() for line in str(error).splitlines() if "PYTHON_VERSION_MISMATCH" in line), "")
    return Check(subject="executors", found=mismatch or _said(error), level=Level.ERROR, remedy=_install(_SPARK))


def _install(package: str) -> str:
    return f"install {package} for the executors' Python (PYSPARK_PYTHON)"


def _said(error: Exception) -> str:
    """What Java said last; it comes after lines that only name a call."""
    text = str(error).strip()
    if "stopped SparkContext" in text:
        return "no master answered at this URL, or it ended the application"
    causes = re.findall(r"^(?:Caused by)?: (.+)$", text, flags=re.MULTILINE)
    return causes[-1] if causes else next(iter(text.splitlines()), type(error).__name__)
