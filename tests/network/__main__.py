"""``make network``: disturb every link in every way and report the results (tests/network/README.md)."""

import argparse
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from onceward.dev.toxiproxy import ToxiproxyError, toxiproxy_server
from tests.network import report
from tests.network.mixed import mixed
from tests.network.results import Run
from tests.network.runs import run_scenario
from tests.network.scenario import Phase, Scenario, all_scenarios
from tests.network.world import linked_harness

_BUILD = Path(__file__).resolve().parents[2] / "build" / "network"


def main() -> int:
    """Return 0 only when every run ended as expected."""
    scenarios = all_scenarios()
    parser = argparse.ArgumentParser(prog="make network", description="every link fails in every way")
    parser.add_argument("--seed", type=int, default=1, help="of the moments, and of the random mode")
    parser.add_argument("--minutes", type=float, help="the random mode: faults and kills mixed, for so long")
    parser.add_argument("--scenario", action="append", choices=[one.name for one in scenarios], help="only these")
    parser.add_argument("--phase", action="append", choices=[phase.value for phase in Phase], help="only these")
    parser.add_argument("--build", type=Path, default=_BUILD, help="where report, logs and histories go")
    arguments = parser.parse_args()
    if arguments.minutes is not None and (arguments.scenario or arguments.phase):
        parser.error("--minutes mixes all scenarios at all phases: leave --scenario and --phase out.")
    try:
        toxiproxy_server()
    except ToxiproxyError as error:
        parser.error(f"{error} Nothing was started.")
    build: Path = arguments.build.resolve()  # child processes run in other directories
    run_directory = build / "run"
    shutil.rmtree(run_directory, ignore_errors=True)
    run_directory.mkdir(parents=True)
    logging.basicConfig(
        filename=run_directory / "suite.log", level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    console = Console(highlight=False, soft_wrap=True, markup=False)
    runs: list[Run] = []
    began = time.monotonic()
    if arguments.minutes is None:
        wanted = [one for one in scenarios if not arguments.scenario or one.name in arguments.scenario]
        parts = planned(run_directory, wanted, arguments.phase, arguments.seed, console)
    else:
        parts = at_random(run_directory, scenarios, arguments.seed, arguments.minutes)
    for made in parts:
        runs += made
        for run in made:
            console.print(report.line(run), style=None if run.good else "red")
        report.write(build, runs, seed=arguments.seed, seconds=time.monotonic() - began)
    for name, value in report.numbers(runs).items():
        console.print(f"{name}: {value}")
    console.print(f"{'PASS' if report.passed(runs) else 'FAIL'}: the report is {build / 'report.md'}")
    return 0 if report.passed(runs) else 1


def planned(
    directory: Path, scenarios: list[Scenario], phases: list[str] | None, seed: int, console: Console
) -> Iterator[list[Run]]:
    """Run every scenario at each of its phases. If toxiproxy itself hangs, the scenario proved nothing: it is repeated
    once, with new servers."""
    left = [
        (scenario, chosen)
        for scenario in scenarios
        if (chosen := [phase for phase in scenario.phases if not phases or phase.value in phases])
    ]
    hung: list[str] = []
    while left:
        servers = directory / f"servers-{len(hung) + 1}"
        servers.mkdir()
        try:
            with linked_harness(servers) as world:
                while left:
                    scenario, chosen = left[0]
                    yield run_scenario(world, scenario, chosen, scenario.name, seed)
                    del left[0]
        except ToxiproxyError as error:
            name = left[0][0].name
            if name in hung:
                raise
            hung.append(name)
            console.print(f"REPEAT  {name}, with new servers: {error}", style="yellow")


def at_random(directory: Path, scenarios: list[Scenario], seed: int, minutes: float) -> Iterator[list[Run]]:
    """Run the random mode."""
    with linked_harness(directory) as world:
        yield from mixed(world, scenarios, seed=seed, minutes=minutes)


if __name__ == "__main__":
    sys.exit(main())
