"""Profile a training step: `python benchmarks/profile_step.py --out profile.json`.

Reports the time by part of the step (data, forward, exchange, objective, backward, optimiser, engine) and by kind of
operator, for AMCL without exchange and with either fusion. The backward pass of the exchange counts as exchange.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import machine
from driver import Nursery
from report import in_markdown
from rich.console import Console
from rich.table import Table

from torchmcl._utils import atomic
from torchmcl.training.run_folder import as_json

NETWORKS: dict[str, dict[str, Any]] = {
    "simple_cnn": {"network": "simple_cnn"},
    "resnet10, width 16": {"network": "resnet10", "width": 16},
}
EXCHANGES = {"none": {"exchange": "none"}, "light": {"preset": "light"}, "default": {"preset": "default"}}
PARTS = ("data", "forward", "exchange", "objective", "backward", "optimiser", "engine")


def profile(nursery: Nursery, spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the milliseconds per step without profiler, and those of its parts with it, {part: {kind: ms}}."""
    candidate = nursery.start({"kind": "fit", "method": "amcl", **spec})
    candidate.run(2)
    plain, profiled = candidate.run(steps), candidate.run(steps, profile=True)
    candidate.stop()
    parts = {
        part: {
            kind: round(1e3 * seconds / steps, 3) for kind, seconds in sorted(kinds.items(), key=lambda one: -one[1])
        }
        for part, kinds in profiled["parts"].items()
    }
    return {"step": round(1e3 * plain["seconds"] / steps, 3), "parts": parts}


def show(results: dict[str, Any]) -> None:
    """Print a table with one row per part and kind of operator that takes at least 1 % of a step."""
    steps = results["steps"]
    console = Console(highlight=False)
    table = Table("part", "operators", *steps, title="Milliseconds of a step")
    for part in PARTS:
        found = [step["parts"].get(part, {}) for step in steps.values()]
        table.add_row(part, "all", *(f"{sum(kinds.values()):.1f}" for kinds in found), style="bold")
        for kind in sorted({kind for kinds in found for kind in kinds}):
            times = [kinds.get(kind, 0.0) for kinds in found]
            if any(time > 0.01 * step["step"] for time, step in zip(times, steps.values(), strict=True)):
                table.add_row("", kind, *(f"{time:.1f}" for time in times))
    table.add_row("step", "without profiler", *(f"{step['step']:.1f}" for step in steps.values()), style="bold")
    console.print(table)


def markdown(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return a Markdown table of two profiles: the milliseconds of each part before and now."""
    rows = []
    for name in now["steps"]:
        steps = before["steps"][name], now["steps"][name]
        parts = ([sum(step["parts"].get(part, {}).values()) for step in steps] for part in PARTS)
        times = [f"{then:.1f} → {today:.1f}" if today else "" for then, today in parts]
        rows.append([name, *times, f"{steps[0]['step']:.0f} → {steps[1]['step']:.0f}"])
    return in_markdown(["network, exchange", *PARTS, "step without profiler"], rows)


def main() -> None:
    """Profile, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, help="width of all networks, for a quick test")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    nursery = Nursery("bare", "ours", threads=given.threads)
    results: dict[str, Any] = {"machine": machine.describe(given.threads), "steps": {}}
    try:
        for name, network in NETWORKS.items():
            for exchange, options in EXCHANGES.items():
                spec = {**network, **options, "members": given.members, "batch": given.batch}
                if given.width:
                    spec["width"] = given.width
                results["steps"][f"{name}, {exchange}"] = profile(nursery, spec, given.steps)
    finally:
        nursery.close()
    if given.out:
        atomic.write(given.out, as_json(results) + "\n")
    show(results)


if __name__ == "__main__":
    main()
