"""Whether training became slower, as ratios to a bare network: `python guard.py NOW.json BEFORE.json`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from report import load
from targets import ALONE, cells


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Speed over that of bare networks, in float32."""
    return {
        f"{network}, M = {cell['members']}, {name}": one["of_bare"]
        for network, several in cells(results, "training").items()
        for cell in several
        for name, one in cell["candidates"].items()
        if name.startswith(ALONE)
    }


def fallen(now: dict[str, Any], before: dict[str, Any], tolerance: float) -> list[str]:
    """Ratios that fell since, each a line; what only one of the runs has is not compared."""
    old = ratios(before)
    return [
        f"Expected {name} at {old[name]:.2f} of bare networks, less {tolerance:.0%} at most, got {value:.2f}."
        for name, value in ratios(now).items()
        if name in old and value < old[name] * (1 - tolerance)
    ]


def main() -> None:
    """Say which fell, and exit with 1 if any did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("now", type=Path)
    parser.add_argument("before", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.15, help="by how much a ratio may fall (default: 0.15)")
    given = parser.parse_args()
    slower = fallen(load(given.now), load(given.before), given.tolerance)
    print("\n".join(slower) or f"No ratio fell by more than {given.tolerance:.0%} since {given.before}.")
    sys.exit(bool(slower))


if __name__ == "__main__":
    main()
