"""Check whether training became slower relative to bare networks: `python guard.py NOW.json BEFORE.json`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from report import load
from targets import ALONE, cells


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Return the speeds relative to bare networks in float32."""
    return {
        f"{network}, M = {cell['members']}, {name}": one["of_bare"]
        for network, several in cells(results, "training").items()
        for cell in several
        for name, one in cell["candidates"].items()
        if name.startswith(ALONE)
    }


def fallen(now: dict[str, Any], before: dict[str, Any], tolerance: float) -> list[str]:
    """Describe each ratio that fell in one line; ratios that only one of the runs has are not compared."""
    old = ratios(before)
    return [
        f"{name} fell from {old[name]:.2f} to {value:.2f} of the speed of bare networks; {tolerance:.0%} is allowed."
        for name, value in ratios(now).items()
        if name in old and value < old[name] * (1 - tolerance)
    ]


def main() -> None:
    """Print the ratios that fell, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("now", type=Path)
    parser.add_argument("before", type=Path)
    parser.add_argument(
        "--tolerance", type=float, default=0.15, help="fraction by which a ratio may fall (default: 0.15)"
    )
    given = parser.parse_args()
    slower = fallen(load(given.now), load(given.before), given.tolerance)
    print("\n".join(slower) or f"No ratio fell by more than {given.tolerance:.0%} compared with {given.before}.")
    sys.exit(bool(slower))


if __name__ == "__main__":
    main()
