"""The report of the results: `python report.py results.json` prints it as Markdown."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import targets
from measure import fastest, ratio

OURS = ("IE", "AMCL", "AMCL light", "AMCL fusion")
OTHERS = ("bare", "Voting", "Fusion")
LEAN = ("AMCL lean", "AMCL light lean")

Table = tuple[str, list[str], list[list[str]]]


def load(path: Path) -> dict[str, Any]:
    """Load stored results."""
    results: dict[str, Any] = json.loads(path.read_text())
    return results


def line(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Format one cell for the progress output."""
    return "  ".join(f"{name} {median(one['seconds']):.4g} s" for name, one in found.items())


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Return the title, header and rows of each table."""
    everything = goals(results), training(results), against(results), memory(results), others(results)
    return [table for table in everything if table[2]]


def training(results: Mapping[str, Any]) -> Table:
    """Return the images per second of ensembles, with the ratios to M bare networks and to the faster peer."""
    rows = []
    for cell in results["cells"]:
        if cell["what"] == "training":
            found = cell["candidates"]
            peer = fastest(found, targets.PEERS)
            shown = [number(found, name, "of_bare", "of_peer") for name in OURS]
            rows.append([*place(cell), number(found, "bare"), number(found, peer), *shown, reached(found)])
    title = "Training: images per second (over bare, over Ensemble-PyTorch)"
    return title, ["network", "M", "batch", "bare", "Ensemble-PyTorch", *OURS, "AMCL, of peak"], rows


def against(results: Mapping[str, Any]) -> Table:
    """Return the images per second of the baselines."""
    rows = [
        [*place(cell), *(number(cell["candidates"], name) for name in (*OTHERS, *LEAN))]
        for cell in results["cells"]
        if cell["what"] == "training"
    ]
    title = "Compared with: images per second (bare: of one network, over M)"
    return title, ["network", "M", "batch", *OTHERS, *LEAN], rows


def memory(results: Mapping[str, Any]) -> Table:
    """Return the peak memory above that before the first step."""
    names = ("bare", "Voting", "Fusion", *OURS, *LEAN)
    rows = [
        [*place(cell), *(megabytes(cell["candidates"].get(name)) for name in names)]
        for cell in results["cells"]
        if cell["what"] == "training"
    ]
    return "Peak memory of training, MB (of tensors in a step)", ["network", "M", "batch", *names], rows


def others(results: Mapping[str, Any]) -> Table:
    """Return the measurements of evaluation, small members and compilation."""
    rows = []
    for cell in results["cells"]:
        if cell["what"] != "training":
            for name, one in cell["candidates"].items():
                rows.append(
                    [cell["what"], cell["network"], str(cell["members"]), name, f"{one['images_per_second']:.4g}"]
                )
    return "Others: examples per second", ["what", "network", "M", "candidate", "examples/s"], rows


def goals(results: Mapping[str, Any]) -> Table:
    """Return the targets and whether they are met."""
    rows = [
        [
            one["target"],
            one["network"],
            str(one["members"]),
            f"{one['value']:.3g}",
            one["limit"],
            "yes" if one["met"] else "**no**",
        ]
        for one in results["targets"]
    ]
    return "Targets (the worst over M)", ["target", "network", "M", "value", "limit", "met"], rows


def brief(results: Mapping[str, Any]) -> str:
    """Return the ratios for the README as Markdown."""
    rows = []
    for cell in results["cells"]:
        found = cell["candidates"]
        if cell["what"] == "training" and cell["precision"] == "32" and cell["members"] > 1:
            over = [found["AMCL"].get(key) for key in ("of_peer", "of_bare")]
            kinds = ("AMCL light", "AMCL fusion")
            fused = [ratio(found, name, "AMCL") if name in found else None for name in kinds]
            shown = ["" if value is None else f"{value:.2f}" for value in (*over, *fused)]
            rows.append([*place(cell), *shown])
    columns = ["network", "M", "batch", "speed over Ensemble-PyTorch", "speed over M bare networks"]
    return in_markdown([*columns, "time with light fusion", "time with fusion"], rows)


def compiled(results: Mapping[str, Any]) -> str:
    """Return the effect of `--compile` on the speed as Markdown."""
    rows = []
    for cell in results["cells"]:
        found = cell["candidates"]
        for name in ("AMCL", "AMCL light"):
            if {name, f"{name} compiled"} <= set(found):
                faster = ratio(found, name, f"{name} compiled")
                rows.append([*place(cell), name, f"{faster:.2f}", "yes" if faster > 1.02 else "no"])
    return in_markdown(["network", "M", "batch", "method", "speed, compiled over eager", "pays"], rows)


def place(cell: Mapping[str, Any]) -> list[str]:
    """Return the network, the number of members and the batch size of a cell."""
    name = cell["network"] + ("" if cell["precision"] == "32" else f", {cell['precision']}")
    return [name, str(cell["members"]), str(cell["batch"])]


def number(found: Mapping[str, Mapping[str, Any]], name: str | None, *ratios: str) -> str:
    """Format images per second with ratios."""
    if name is None or name not in found:
        return ""
    one = found[name]
    over = ", ".join(f"{one[ratio]:.2f}" for ratio in ratios if ratio in one)
    return f"{one['images_per_second']:.4g}" + (f" ({over})" if over else "")


def reached(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the fraction of the machine's peak that AMCL without exchange reaches."""
    return f"{found['AMCL']['of_peak']:.0%}" if "of_peak" in found.get("AMCL", {}) else ""


def megabytes(one: Mapping[str, Any] | None) -> str:
    """Format the peak memory, and the peak of tensors."""
    if one is None:
        return ""
    tensors = f" ({one['tensors'] / 2**20:.0f})" if "tensors" in one else ""
    return f"{one['memory'] / 2**20:.0f}{tensors}"


def preface(results: Mapping[str, Any]) -> list[str]:
    """Describe the command, the machine and its peak performance."""
    about, peak = results["machine"], results["peak"]
    peer = f", torchensemble {about['torchensemble']}" if "torchensemble" in about else ""
    lines = [
        f"`{about['command']}` at {about['commit']}, {results['took']} s, {about['processor']}, "
        f"{about['threads']} threads, torch {about['torch']}, lightning {about['lightning']}{peer}.",
        f"Peak of the machine in the same run, float32: matrix product {peak['matrix product']:.0f} GFLOP/s, "
        f"convolution {peak['convolution']:.0f} GFLOP/s ({peak['best convolution']}).",
    ]
    if not about["bf16"]:
        lines.append("This processor has no bf16 instructions and emulates them; one small cell shows the effect.")
    return lines + [f"Not measured: {one}." for one in results["missing"]]


def markdown(results: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    parts = ["# Benchmark", *preface(results)]
    for title, header, rows in tables(results):
        parts += [f"## {title}", in_markdown(header, rows)]
    return "\n\n".join(parts) + "\n"


def in_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def show(results: Mapping[str, Any]) -> None:
    """Print the report on the terminal."""
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console(highlight=False)
    for text in preface(results):
        console.print(text, markup=False)
    for title, header, rows in tables(results):
        grid = Grid(*header, title=title)
        for row in rows:
            grid.add_row(*(cell.replace("**", "") for cell in row))
        console.print(grid)


if __name__ == "__main__":
    print(markdown(load(Path(sys.argv[1]))), end="")
