"""Plots of a result. Run by the Python of an environment that has matplotlib, so it imports none of our modules::

python plots.py RESULT.json DIRECTORY
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]

mpl.use("Agg")
import matplotlib.pyplot as plt  # type: ignore[import-not-found]
from matplotlib.ticker import LogLocator, MaxNLocator  # type: ignore[import-not-found]

_FIGURES = {
    "records_per_s": "records per second",
    "records_per_s_whole": "records per second, start included",
    "cpu_s_per_million": "CPU seconds per million records",
    "peak_pss_mb": "peak memory, MB",
    "p50_ms": "end to end p50, ms",
    "p99_ms": "end to end p99, ms",
    "p99_9_ms": "end to end p99.9, ms",
    "caught_up_s": "seconds until nothing waits",
    "cycle_ms": "ms per checkpoint",
    "mb_per_s": "MB per second",
    "cpu_s_per_gb": "CPU seconds per GB",
    "broker_cpu_s_per_million": "broker's CPU seconds per million records",
    "ms_per_slot": "ms per checkpoint and slot",
}
_OURS, _THEIRS = "#1f6f8b", "#b0b7bd"


def main() -> None:
    results: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(sys.argv[2])
    axes = results.get("axes", {})
    if "loads" in results:
        _curves(results, directory / "latency.png")
        return
    for workload, systems in results["summary"].items():
        if workload in axes:
            _lines(axes[workload], systems, results, directory / f"{workload}.png")
            _steps(axes[workload], results["steps"].get(workload, {}), directory / f"steps-{workload}.png")
        else:
            _bars(workload, systems, results, directory / f"{workload}.png")
    _latency({run["system"]: run for run in results["runs"] if run.get("figures", {}).get("over_time")}, directory)
    # one plot per system and workload, of the last round
    for name, run in {f"timeline-{run['workload']}-{run['system']}": run for run in results["runs"]}.items():
        if run.get("figures", {}).get("timeline", {}).get("spans"):
            _timeline(run, directory / f"{name.replace(' ', '-').replace(',', '')}.png")


def _bars(workload: str, systems: dict[str, Any], results: dict[str, Any], file: Path) -> None:
    """Draw one panel per figure: the median, and a line from the least to the most."""
    figures = [name for name in _FIGURES if any(name in of for of in systems.values())]
    if not figures:
        return
    picture, panels = plt.subplots(1, len(figures), figsize=(4 * len(figures), 0.9 + 0.5 * len(systems)), squeeze=False)
    for panel, figure in zip(panels[0], figures, strict=True):
        names = [name for name, of in systems.items() if figure in of]
        spreads = [systems[name][figure] for name in names]
        medians = [spread["median"] for spread in spreads]
        errors = [
            [spread["median"] - spread["min"] for spread in spreads],
            [spread["max"] - spread["median"] for spread in spreads],
        ]
        colours = [_OURS if name.startswith("ours") else _THEIRS for name in names]
        panel.barh(names, medians, xerr=errors, color=colours, ecolor="#444444")
        for place, median in enumerate(medians):
            panel.text(0, place, f" {median:,.0f}" if median >= 100 else f" {median:,.2f}", va="center")
        panel.invert_yaxis()
        panel.locator_params(axis="x", nbins=4)
        panel.set_title(_FIGURES[figure], fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    _save(picture, workload, results, file)


def _lines(axis: dict[str, Any], systems: dict[str, Any], results: dict[str, Any], file: Path) -> None:
    """Draw one panel per figure over the varied quantity: the median, and a line from the least to the most."""
    figures = [name for name in axis["figures"] if name in _FIGURES and any(name in of for of in systems.values())]
    if not figures:
        return
    picture, panels = plt.subplots(1, len(figures), figsize=(3.6 * len(figures), 3.2), squeeze=False)
    for panel, figure in zip(panels[0], figures, strict=True):
        found = {axis["points"][name]["at"]: of[figure] for name, of in systems.items() if figure in of}
        medians = [spread["median"] for spread in found.values()]
        errors = [
            [spread["median"] - spread["min"] for spread in found.values()],
            [spread["max"] - spread["median"] for spread in found.values()],
        ]
        panel.errorbar(list(found), medians, yerr=errors, color=_OURS, ecolor="#444444", marker="o")
        for at, median in zip(found, medians, strict=True):
            text = f"{median:,.0f}" if median >= 100 else f"{median:,.2f}"
            panel.annotate(text, (at, median), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8)
        panel.set_xscale("log")
        panel.set_xticks(list(found), [f"{at:,}" for at in found])
        panel.minorticks_off()
        panel.margins(0.15, 0.15)
        panel.set_ylim(bottom=0)
        panel.set_xlabel(axis["unit"])
        panel.set_title(_FIGURES[figure], fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    _save(picture, axis["title"], results, file)


def _steps(axis: dict[str, Any], points: dict[str, dict[str, float]], file: Path) -> None:
    """Draw the stacked medians of a checkpoint's steps over the varied quantity."""
    if not points:
        return
    steps = list(dict.fromkeys(step for of in points.values() for step in of if step not in ("overlap", "offsets")))
    picture, panel = plt.subplots(figsize=(9, 1.6 + 0.45 * len(points)))
    ends = [0.0] * len(points)
    for step, colour in zip(steps, plt.get_cmap("tab20").colors, strict=False):
        took = [of.get(step, 0.0) for of in points.values()]
        panel.barh(range(len(points)), took, left=ends, color=colour, label=step)
        ends = [end + more for end, more in zip(ends, took, strict=True)]
    panel.set_yticks(range(len(points)), list(points))
    panel.invert_yaxis()
    panel.set_xlabel("ms of a checkpoint (medians of its steps)")
    panel.set_title(axis["title"], fontsize=10)
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    picture.savefig(file, dpi=110, bbox_inches="tight")
    plt.close(picture)


def _save(picture: Any, what: str, results: dict[str, Any], file: Path) -> None:
    machine = results["machine"]
    picture.suptitle(f"{what}: {machine['cores']} cores, {results['rounds']} rounds, {machine['at']}", fontsize=11)
    picture.tight_layout()
    picture.savefig(file, dpi=110)
    plt.close(picture)


def _latency(runs: dict[str, Any], directory: Path) -> None:
    """Draw the latency of each second, a panel per system: the median, and the range up to p99 and to the worst."""
    if not runs:
        return
    picture, panels = plt.subplots(len(runs), 1, figsize=(9, 1.2 + 1.5 * len(runs)), sharex=True, squeeze=False)
    for panel, (name, run) in zip(panels[:, 0], runs.items(), strict=True):
        seconds = [row["second"] for row in run["figures"]["over_time"]]
        p50, p99, worst = (
            [row[figure] for row in run["figures"]["over_time"]] for figure in ("p50_ms", "p99_ms", "worst_ms")
        )
        colour = _OURS if name.startswith("ours") else "#777777"
        panel.fill_between(seconds, p50, worst, color=colour, alpha=0.15, step="mid", label="to the worst")
        panel.fill_between(seconds, p50, p99, color=colour, alpha=0.35, step="mid", label="to p99")
        panel.step(seconds, p50, where="mid", color=colour, label="p50")
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.yaxis.set_minor_formatter("")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_ylabel("ms")
        panel.set_title(name, fontsize=10, loc="left")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(loc="upper right", fontsize=8, frameon=False)
    panels[-1, 0].set_xlabel("second in which a record was sent (last round)")
    picture.tight_layout()
    picture.savefig(directory / "latency-over-time.png", dpi=110)
    plt.close(picture)


def _curves(results: dict[str, Any], file: Path) -> None:
    """Draw latency over the interval, a panel per load: p50 of each system, and p99 dashed (medians of the rounds)."""
    found: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for run in results["runs"]:
        row = results["summary"][run["workload"]][run["system"]]
        if "p50_ms" in row:
            points = found.setdefault(run["workload"], {}).setdefault(run["of"], {})
            points[run["interval_ms"]] = {figure: row[figure]["median"] for figure in ("p50_ms", "p99_ms")}
    if not found:
        return
    systems = list(dict.fromkeys(run["of"] for run in results["runs"]))
    colours = dict(zip(systems, plt.get_cmap("tab10").colors, strict=False))
    picture, panels = plt.subplots(1, len(found), figsize=(4.2 * len(found), 4), sharey=True, squeeze=False)
    for panel, (load, of_load) in zip(panels[0], found.items(), strict=True):
        for system, points in of_load.items():
            intervals = sorted(points)
            for figure, style in (("p50_ms", "-"), ("p99_ms", "--")):
                panel.plot(
                    intervals,
                    [points[interval][figure] for interval in intervals],
                    style,
                    color=colours[system],
                    marker="o",
                    markersize=4,
                    label=f"{system} {figure.removesuffix('_ms')}",
                )
        ticks = sorted({interval for points in of_load.values() for interval in points})
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.set_xlabel("interval, ms")
        panel.set_title(load, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("end to end, ms")
    panels[0, -1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _save(picture, "latency", results, file)


def _timeline(run: dict[str, Any], file: Path) -> None:
    """Draw a row per checkpoint on one time axis: where rows overlap, one checkpoint ran while another one settled."""
    timeline = run["figures"]["timeline"]
    spans = timeline["spans"]
    steps = list(timeline["median_ms"])
    colours = dict(zip(steps, plt.get_cmap("tab20").colors, strict=False))
    checkpoints = sorted({span["checkpoint"] for span in spans})
    first = min(span["began_s"] for span in spans)
    picture, panel = plt.subplots(figsize=(11, 1.8 + 0.35 * len(checkpoints)))
    for span in spans:
        began = (span["began_s"] - first) * 1000
        panel.barh(
            checkpoints.index(span["checkpoint"]),
            (span["ended_s"] - span["began_s"]) * 1000,
            left=began,
            height=0.6,
            color=colours[span["step"]],
        )
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=colours[step], label=f"{step} ({timeline['median_ms'][step]:g} ms)")
        for step in steps
    ]
    panel.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), title="median", frameon=False)
    panel.set_yticks(range(len(checkpoints)), [str(checkpoint) for checkpoint in checkpoints])
    panel.invert_yaxis()
    panel.set_ylabel("checkpoint")
    panel.set_xlabel("ms")
    overlap = f"each continues for {timeline['median_overlap_ms']:g} ms beside the next (median)"
    read = f"{timeline['median_read']:,.0f} offsets per checkpoint"
    panel.set_title(f"{run['system']}, {run['workload']}: {read}; {overlap}", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    picture.savefig(file, dpi=110, bbox_inches="tight")
    plt.close(picture)


if __name__ == "__main__":
    main()
