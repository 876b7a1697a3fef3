"""The speed of training and evaluation, compared with a bare loop, Ensemble-PyTorch and the peak of the machine.

`make bench` runs everything and writes results.json and results.md; `make bench-small` runs a part for guard.py. Every
number is the median of slices of a few steps, which are measured in turn with those of the compared candidates.
"""

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import machine
import peak
import report
import targets
from driver import Nursery
from measure import Specs, measure
from rich.console import Console

from torchmcl._utils import atomic
from torchmcl.training.run_folder import as_json


@dataclass(frozen=True)
class Network:
    """A network to measure; for `big` ones, not every candidate is measured at every M.

    Their batches are smaller, because all candidates stay in memory: 10 MobileNetV2 at batch 128 would need 27 GB each.
    """

    options: Mapping[str, Any]
    batch: int = 128
    big: bool = False


@dataclass(frozen=True)
class Plan:
    """The measurements and their `budget` in seconds by number of members, for small and for big networks."""

    networks: Mapping[str, Network]
    members: tuple[int, ...] = (1, 5, 10)
    budget: Mapping[int, tuple[float, float]] = field(default_factory=lambda: {1: (20, 25), 5: (45, 60), 10: (60, 75)})
    rounds: tuple[int, int] = (5, 15)
    slice: float = 0.4  # seconds
    count: int = 6400  # training examples
    looked_at: int = 1024  # number of evaluated examples
    rows: Mapping[str, int] = field(default_factory=lambda: {"members": 32, "width": 256, "inputs": 64})
    everything: bool = True  # False: only what the guard against regressions needs


SIMPLE, NARROW = Network({"network": "simple_cnn"}), Network({"network": "resnet10", "width": 16})
FULL = Plan(
    {
        "simple_cnn": SIMPLE,
        "resnet10, width 16": NARROW,
        "resnet10, width 64": Network({"network": "resnet10", "width": 64}, batch=32, big=True),
        "mobilenet_v2": Network({"network": "mobilenet_v2"}, batch=16, big=True),
    }
)
SMALL = Plan({"simple_cnn": SIMPLE, "resnet10, width 16": NARROW}, members=(5,), budget={5: (45, 45)}, everything=False)
TOY = Plan(
    {"simple_cnn": Network({"network": "simple_cnn", "width": 2}, batch=8)},
    members=(1, 2),
    budget={1: (0, 0), 2: (0, 0)},
    rounds=(2, 2),
    slice=0.0,
    count=32,
    looked_at=16,
    rows={"members": 2, "width": 4, "inputs": 4},
)


class Bench:
    """One run of the benchmark."""

    def __init__(self, plan: Plan, *, threads: int, peer: str | None, compile: bool = False) -> None:
        self.plan, self.compile = plan, compile
        self.ours = Nursery("bare", "ours", "peak", "counts", threads=threads)
        self.peer = Nursery("peer", python=peer, threads=threads) if peer else None
        self.console = Console(stderr=True)
        self.most = max(plan.members)
        self.peaks: dict[str, list[float]] = {}
        self.results: dict[str, Any] = {"machine": machine.describe(threads), "cells": [], "missing": []}
        if peer:
            self.results["machine"]["torchensemble"] = machine.version_in(peer, "torchensemble")

    def run(self) -> dict[str, Any]:
        """Measure everything."""
        start = time.monotonic()
        try:
            if self.compile:
                self.compiled()
            else:
                self.eager()
        finally:
            self.ours.close()
            if self.peer is not None:
                self.peer.close()
        best = max((name for name in self.peaks if name != "matrix product"), key=lambda name: median(self.peaks[name]))
        self.results["peak"] = {
            "matrix product": round(median(self.peaks["matrix product"]), 1),
            "convolution": round(median(self.peaks[best]), 1),
            "best convolution": best,
        }
        self.results["took"] = round(time.monotonic() - start)
        targets.complete(self.results)
        return self.results

    def eager(self) -> None:
        """Measure everything without compilation."""
        precisions = ["32", "bf16-mixed"] if self.results["machine"]["bf16"] and self.plan.everything else ["32"]
        for name, network in self.plan.networks.items():
            for members in self.plan.members:
                for precision in precisions:
                    self.cell("training", name, members, self.training(network, members, precision), precision)
                self.peak()
            if self.plan.everything:
                members = 1 if network.big else min(5, self.most)
                self.cell("evaluation", name, members, self.evaluation(network, members))
        if self.plan.everything:
            self.cell("small members", "mlp", self.plan.rows["members"], self.small_members())
            if len(precisions) == 1:
                self.emulated()

    def cell(self, what: str, name: str, members: int, specs: Specs, precision: str = "32", **options: Any) -> None:
        """Measure candidates that are compared with each other, and store the results."""
        network = self.plan.networks.get(name, Network({}))
        budget = self.plan.budget.get(members, (10, 10))[network.big] if what == "training" else 20
        rounds = (min(3, self.plan.rounds[0]), self.plan.rounds[1]) if network.big else self.plan.rounds
        lean = [one for one in specs if what == "training" and not network.big and one.startswith("AMCL")]
        usual = {"budget": budget, "rounds": rounds, "slice": self.plan.slice, "profiled": lean}
        found, missing = measure(specs, **{**usual, **options})
        self.results["missing"] += [f"{what}, {name}, M = {members}, {one}" for one in missing]
        cell = {"what": what, "network": name, "members": members, "precision": precision, "batch": network.batch}
        if what == "evaluation":
            cell["batch"] = self.looked_at(network)
        if what == "training":
            cell["operations"] = {one: self.operations(name, members, one) for one in found}
        self.results["cells"].append({**cell, "candidates": found})
        self.console.print(f"{what}, {name}, M = {members}, {precision}: " + report.line(found), highlight=False)

    def training(self, network: Network, members: int, precision: str = "32") -> Specs:
        """Return the candidates that train `members` networks."""
        common = {**network.options, "batch": network.batch, "count": self.plan.count}
        bare = {"kind": "bare", "precision": precision, **common}
        fit = {"kind": "fit", "members": members, "precision": precision, **common}
        amcl = {**fit, "method": "amcl"}
        few = network.big and members == self.most  # their steps take long
        specs: dict[str, tuple[Nursery, dict[str, Any]]] = {
            "bare": (self.ours, bare),
            "AMCL": (self.ours, {**amcl, "exchange": "none"}),
        }
        if not few:
            specs["AMCL light"] = self.ours, {**amcl, "preset": "light"}
        if not few and self.plan.everything:
            specs["IE"] = self.ours, {**fit, "method": "ie", "exchange": "none"}
        if self.plan.everything and members == self.most and not network.big:
            specs["AMCL lean"] = self.ours, {**amcl, "exchange": "none", "lean": True}
            specs["AMCL light lean"] = self.ours, {**amcl, "preset": "light", "lean": True}
        if self.peer is not None and precision == "32":
            peer = {"kind": "peer", "members": members, **common}
            specs["Fusion"] = self.peer, {**peer, "classifier": "FusionClassifier"}
            if not network.big or members == 1:
                specs["Voting"] = self.peer, {**peer, "classifier": "VotingClassifier"}
        return {**specs, "AMCL fusion": (self.ours, amcl)}

    def evaluation(self, network: Network, members: int) -> Specs:
        """Return the candidates for a bare forward pass and for `evaluate`."""
        count = self.looked_at(network)
        common = {**network.options, "members": members, "count": count, "batch": 128}
        return {
            "bare": (self.ours, {"kind": "forward", **common}),
            "IE": (self.ours, {"kind": "evaluate", "method": "ie", **common}),
            "AMCL": (self.ours, {"kind": "evaluate", "method": "amcl", **common}),
        }

    def looked_at(self, network: Network) -> int:
        """Return the number of images per evaluation."""
        return self.plan.looked_at // (2 if network.big else 1)

    def small_members(self) -> Specs:
        """Return MLPs on a table: a loop over members with one optimizer each or one for all, and the ensemble."""
        rows = dict(self.plan.rows)
        table = {"network": "mlp", "members": rows["members"], "width": rows["width"], "shape": [rows["inputs"]]}
        table["count"] = self.plan.count
        loop = {"kind": "bare", **table, "inputs": rows["inputs"]}
        return {
            "loop": (self.ours, loop),
            "loop, one optimiser": (self.ours, {**loop, "joint": True}),
            "ensemble": (self.ours, {"kind": "step", **table, "inputs": rows["inputs"]}),
            "IE": (self.ours, {"kind": "fit", "method": "ie", **table}),
        }

    def emulated(self) -> None:
        """Measure one small cell in emulated bf16, to show that it is not faster."""
        name, network = next(iter(self.plan.networks.items()))
        specs = {
            one: spec for one, spec in self.training(network, 1, "bf16-mixed").items() if one in ("bare", "IE", "AMCL")
        }
        self.cell("training", name, 1, specs, "bf16-mixed", budget=15, profiled=())

    def compiled(self) -> None:
        """Compare `--compile` with eager mode; compilation may take up to ten minutes."""
        self.peak()
        for name, network in self.plan.networks.items():
            members = 1 if network.big else min(5, self.most)
            specs = self.training(network, members)
            both = {
                f"{one}{suffix}": (self.ours, {**specs[one][1], **options})
                for one in ("AMCL", "AMCL light")
                for suffix, options in (("", {}), (" compiled", {"compile": True}))
            }
            self.cell("compile", name, members, both, timeout=600, budget=60)

    def peak(self) -> None:
        """Measure the peak performance of the machine."""
        for name, (spec, operations) in peak.candidates().items():
            candidate = self.ours.start(spec)
            candidate.run(1)
            answer = candidate.run(3 if self.plan.slice else 1)
            candidate.stop()
            self.peaks.setdefault(name, []).append(operations * answer["steps"] / answer["seconds"])

    @cache  # noqa: B019
    def operations(self, name: str, members: int, candidate: str) -> dict[str, float]:
        """Return the multiply-adds of a forward pass and the operations of a step, per image."""
        exchange: str | None = None
        if candidate.startswith("AMCL"):
            exchange = "default" if "fusion" in candidate or "light" in candidate else "none"
        preset = "light" if "light" in candidate else "default"
        spec = {"kind": "count", "members": members, "exchange": exchange, "preset": preset}
        candidate_of_it = self.ours.start({**spec, **self.plan.networks[name].options})
        candidate_of_it.stop()
        return {key: candidate_of_it.said[key] for key in ("forward", "step")}


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--small", action="store_true", help="compare two small networks with the bare loop (two minutes)"
    )
    size.add_argument("--toy", action="store_true", help="tiny networks, to test the benchmark itself")
    parser.add_argument("--peer", metavar="PYTHON", help="Python interpreter of an environment with torchensemble")
    parser.add_argument(
        "--networks", nargs="+", choices=FULL.networks, metavar="NAME", help="networks to measure (default: all)"
    )
    parser.add_argument("--compile", action="store_true", help="measure torch.compile instead (takes minutes)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of each candidate (default: all cores)"
    )
    parser.add_argument(
        "--out", type=Path, help="JSON file to write; a Markdown file of the same name is written next to it"
    )
    given = parser.parse_args()
    plan = SMALL if given.small else TOY if given.toy else FULL
    if given.networks:
        plan = Plan({name: FULL.networks[name] for name in given.networks})
    results = Bench(plan, threads=given.threads, peer=given.peer, compile=given.compile).run()
    if given.out:
        atomic.write(given.out, as_json(results) + "\n")
        atomic.write(given.out.with_suffix(".md"), report.markdown(results))
    report.show(results)


if __name__ == "__main__":
    main()
