"""CPU time and peak memory of starting torchmcl: the import, the help texts and the version, next to plain Python.

python benchmarks/startup.py --out benchmarks/startup.json

Each command runs in a new process, in turn with the others, and the medians are reported. The exit code is 1 if a help
text takes `--limit` seconds of CPU time or more, or if a command imports torch. Linux only, since it reads /proc.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

# Reports peak memory in KB, which the parent cannot measure exactly, and whether torch was imported.
REPORT = """
import atexit, sys
def report():
    with open("/proc/self/status") as status:
        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print("\\n" + peak, int("torch" in sys.modules), file=sys.stderr)
atexit.register(report)
"""
RUN = "import runpy; sys.argv[1:] = {}; runpy.run_module('torchmcl', run_name='__main__')"
COMMANDS = {
    "python -c pass": "pass",
    "import torchmcl": "import torchmcl",
    "torchmcl --version": RUN.format(["--version"]),
    "torchmcl --help": RUN.format(["--help"]),
    "torchmcl train --help": RUN.format(["train", "--help"]),
}
SHOWN = ("cpu_seconds", "peak_mb", "imports_torch")


def measured(code: str) -> dict[str, float]:
    """Run code in a new process and return its CPU seconds, its peak memory and whether it imported torch."""
    command = [sys.executable, "-c", REPORT + code]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"The command failed with code {process.returncode}: {errors}")
    peak, imports_torch = map(int, errors.split()[-2:])
    return {"cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_mb": peak / 1024, "imports_torch": imports_torch}


def problems(rows: dict[str, dict[str, float]], limit: float) -> list[str]:
    """List the commands that are too slow or import torch."""
    found = [f"{name} imports torch." for name, row in rows.items() if row["imports_torch"]]
    for name, row in rows.items():
        if name.endswith("--help") and row["cpu_seconds"] >= limit:
            found.append(f"{name} takes {row['cpu_seconds']:.2f} s of CPU time; the limit is {limit:g} s.")
    return found


def main() -> int:
    """Measure, print, write and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="processes per command (default: 9)")
    parser.add_argument(
        "--limit", type=float, default=0.5, help="CPU seconds a help text must stay below (default: 0.5)"
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    for code in COMMANDS.values():
        measured(code)  # compiles modules and fills the file cache
    rounds = [{name: measured(code) for name, code in COMMANDS.items()} for _ in range(options.rounds)]
    rows = {name: {key: round(median(one[name][key] for one in rounds), 3) for key in SHOWN} for name in COMMANDS}
    print(f"{'':22}" + "".join(f"{key:>15}" for key in SHOWN))
    for name, row in rows.items():
        print(f"{name:22}" + "".join(f"{row[key]:>15}" for key in SHOWN))
    if options.out is not None:
        import machine  # late: it imports torch

        result = {"machine": machine.describe(1), "rounds": options.rounds, "limit": options.limit, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    found = problems(rows, options.limit)
    print("\n".join(found) or f"Help texts take less than {options.limit:g} s of CPU time, and nothing imports torch.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
