"""Routed inference: images per second and top-1 error if only the likely owners of an image are queried.

python benchmarks/routing.py --out benchmarks/routing.json --figure docs/routing.png

Trains ResNet-10 of width 16 with AMCL (M = 5 and 10, the others sampled) and an independent ensemble (IE), as the study
`sparse` does from scratch, or reads them from the folder --runs. Trains a router for each of AMCL's models and measures
`predict_batch` with `query` 1, 2 and 3, with and without a larger budget. All ways of querying alternate in one
process, in the reverse order in every other round, in batches of 128. Ratios are medians of the rounds' ratios.

`speed` is the ratio to querying all members, and `expected` the ratio of the multiply-adds. `cost` is the time over
that of one network, the stem and the body of the first member. `lost` is the difference of the top-1 error on the whole
test set to that of all members, in points. The goal is a speed of 2 with at most 0.3 points lost. IE with n of its
members costs n networks.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import machine
import torch
from measure import in_turn
from torch.utils.flop_counter import FlopCounterMode

from torchmcl import data
from torchmcl._utils import atomic
from torchmcl.analysis import style
from torchmcl.data.examples import DataSet, Examples
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.router_training import train_router
from torchmcl.training import fit

BATCH, QUERIES, VALIDATION = 128, (1, 2, 3), 0.1
SAMPLE = {5: 0.25, 10: 0.1}  # part of the others' images, as in the study `sparse`
LEAST_SPEED, MOST_LOST = 2.0, 0.3
ALL, ONE = "all", "one network"
Way = Callable[[torch.Tensor], Any]


def trained(given: argparse.Namespace, method: str, members: int, exchange: str, dataset: DataSet) -> Specialists:
    """Return a model from the folder of runs, trained first if it is not there."""
    folder = given.runs / f"{method}-{members}-{exchange}"
    if not (folder / "metrics.json").is_file():
        options: dict[str, Any] = {"exchange": exchange, "epochs": given.epochs, "width": given.width, "out": folder}
        options |= {"drop_every": max(given.epochs // 3, 1), "resume": (folder / "config.yaml").is_file()}
        options |= {"data_limit": given.limit, "data_validation": VALIDATION}
        if method == "amcl":
            options |= {"balance": "memory", "sample_others": SAMPLE.get(members, 1 / members)}
        fit(method, "resnet10", given.data, members=members, verbose=False, **options)
    specialists = Specialists.load(folder)
    if method == "amcl" and specialists.router is None:
        validation = dataset.validation if dataset.validation is not None else dataset.train
        found = train_router(specialists, dataset.train, validation=validation, epochs=given.router_epochs)
        specialists.save(folder)
        print(f"{folder.name}: the owner is missed by the first 1, 2, … members: {found.missed}")
    return specialists


def top1_error(label: torch.Tensor, target: torch.Tensor) -> float:
    """Return the error in percent."""
    return 100 * float((label != target).double().mean())


def first_member(specialists: Specialists) -> Way:
    """Return the first member as a network of its own."""
    ensemble = specialists.ensemble

    @torch.no_grad()
    def run(x: torch.Tensor) -> torch.Tensor:
        x = specialists.to_input(x)
        return ensemble.forward_member(0, ensemble.stems[0](x), x)

    return run


def ratio(one: list[float], other: list[float]) -> float:
    """Return the median of the ratios of the rounds."""
    return median(a / b for a, b in zip(one, other, strict=True))


def multiply_adds(way: Way, batch: torch.Tensor) -> float:
    """Return the floating-point operations of convolutions and matrix products for a batch."""
    with FlopCounterMode(display=False) as counter:
        way(batch)
    return counter.get_total_flops()


def measure(specialists: Specialists, test: Examples, exchange: str, rounds: int, batches: int) -> list[dict[str, Any]]:
    """Return one row per number of queried members and budget; the first row queries all members."""
    M = specialists.method.members
    asked = [(query, budget) for query in QUERIES if query < M for budget in (query, min(2 * query, M))]
    names = {ALL: {}} | {f"{q} of at most {b}": {"query": q, "budget": b} for q, b in asked}
    ways: dict[str, Way] = {
        name: lambda x, options=options: specialists.predict_batch(x, **options) for name, options in names.items()
    }
    ways[ONE] = first_member(specialists)
    images = test.images[torch.arange(min(batches * BATCH, len(test)))].split(BATCH)
    seconds = in_turn(ways, images, rounds)
    operations = {name: multiply_adds(way, images[0]) for name, way in ways.items()}
    answers = {name: specialists.predict(test, **options) for name, options in names.items()}
    errors = {name: top1_error(answer.label, test.target) for name, answer in answers.items()}
    rows = []
    for name, options in names.items():
        queried, speed = answers[name].queried, 1 / ratio(seconds[name], seconds[ALL])
        row: dict[str, Any] = {"method": specialists.method.name, "exchange": exchange, "members": M}
        row |= {"query": M, "budget": M} | options
        row["queried"] = float(M) if queried is None else round(float(queried.sum(0).double().mean()), 3)
        row |= {"images_per_second": round(sum(map(len, images)) / median(seconds[name]), 1)}
        row |= {"speed": round(speed, 3), "expected": round(operations[ALL] / operations[name], 3)}
        row |= {"cost": round(ratio(seconds[name], seconds[ONE]), 3), "top1_error": round(errors[name], 3)}
        row["lost"] = round(errors[name] - errors[ALL], 3)
        row["met"] = speed >= LEAST_SPEED and row["lost"] <= MOST_LOST
        print({name: row[name] for name in ("members", "query", "budget", "queried", "speed", "top1_error", "lost")})
        rows.append(row)
    return rows


def independent(specialists: Specialists, test: Examples) -> list[dict[str, Any]]:
    """Return the error of the mean of the first n members, which costs n networks."""
    members = specialists.predict(test).members
    return [
        {
            "method": "ie",
            "members": n,
            "cost": float(n),
            "top1_error": round(top1_error(members[:n].mean(0).argmax(1), test.target), 3),
        }
        for n in range(1, len(members) + 1)
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot the top-1 error over the cost in networks."""
    figure = style.new()
    axes = figure.subplots()
    names = dict.fromkeys((row["method"], row.get("exchange"), "query" in row and row["members"]) for row in rows)
    for number, (method, exchange, members) in enumerate(names):
        own = [row for row in rows if row["method"] == method]
        if method == "amcl":
            own = [row for row in own if (row["exchange"], row["members"]) == (exchange, members)]
            shared = "" if exchange == "none" else ", shared stem"
            label = f"AMCL, M = {members}{shared}, routed"
        else:
            label = "one network, and IE"
        own = sorted(own, key=lambda row: row["cost"])
        points = {"marker": "o", "markersize": 4, "label": label}
        axes.plot([row["cost"] for row in own], [row["top1_error"] for row in own], **style.line(number), **points)
    axes.set(xlabel="cost in networks", ylabel="top-1 error in percent", xlim=(0, None))
    style.tidy(axes, grid="both")
    style.legend(axes)
    style.save(figure, path)


def main() -> None:
    """Train, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/routing"), help="folder of the trained models")
    parser.add_argument("--data", default="cifar10", help="data set")
    parser.add_argument("--limit", type=int, default=20_000, help="training images")
    parser.add_argument("--epochs", type=int, default=12, help="epochs of the members")
    parser.add_argument("--router-epochs", type=int, default=10, help="epochs of the router")
    parser.add_argument("--width", type=int, default=16, help="width of ResNet-10")
    parser.add_argument("--members", type=int, nargs="+", default=[5, 10], help="members of AMCL")
    parser.add_argument("--exchanges", nargs="+", default=["none"], choices=["none", "weight_sharing"])
    parser.add_argument("--rounds", type=int, default=7, help="rounds per way of querying")
    parser.add_argument("--batches", type=int, default=8, help="batches per round")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--figure", type=Path, help="figure to write, .png, .pdf or .svg")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset, rows = data.load(given.data, limit=given.limit, validation=VALIDATION), []
    for exchange in given.exchanges:
        for members in given.members:
            specialists = trained(given, "amcl", members, exchange, dataset)
            rows += measure(specialists, dataset.test, exchange, given.rounds, given.batches)
    rows += independent(trained(given, "ie", min(given.members), "none", dataset), dataset.test)
    about = {name: getattr(given, name) for name in ("data", "limit", "epochs", "router_epochs", "width", "rounds")}
    results = {"machine": machine.describe(1), **about, "batch": BATCH, "rows": rows}
    if given.out:
        atomic.write(given.out, json.dumps(results, indent=1) + "\n")
    if given.figure:
        draw(rows, given.figure)


if __name__ == "__main__":
    main()
