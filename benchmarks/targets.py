"""The performance targets, as pure functions of the results."""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from measure import fastest, ratio

PEERS = ("Fusion", "Voting")
ALONE = ("IE", "AMCL")  # without exchange

Cell = dict[str, Any]
Results = dict[str, Any]


def complete(results: Results) -> None:
    """Add the derived numbers to every candidate, and the targets to the results."""
    for cell in results["cells"]:
        found, images = cell["candidates"], cell["batch"]
        peer = fastest(found, PEERS)
        for name, one in found.items():
            times = one["seconds"]
            # One bare network represents M of them in sequence.
            share = cell["members"] if cell["what"] == "training" and name == "bare" else 1
            one["images_per_second"] = round(images / (share * median(times)), 2)
            one["spread"] = [round(min(times) / median(times), 3), round(max(times) / median(times), 3)]
            if "bare" in found:
                one["of_bare"] = round(of_bare(cell, name), 3)
            if peer and name not in ("bare", *PEERS):
                one["of_peer"] = round(1 / ratio(found, name, peer), 3)
            if operations := cell.get("operations", {}).get(name):
                one["gflops"] = round(operations["step"] * one["images_per_second"] * 1e-9, 2)
                one["of_peak"] = round(one["gflops"] / results["peak"]["convolution"], 3)
    results["targets"] = [target for find in TARGETS for target in find(results)]


def of_bare(cell: Cell, name: str) -> float:
    """Return the images per second of a candidate relative to M bare networks."""
    takes = ratio(cell["candidates"], name, "bare")
    one_network = cell["what"] != "training"  # a bare evaluation already runs all members
    return (1 if one_network or name == "bare" else cell["members"]) / takes


def target(
    text: str,
    network: str,
    worst: Iterable[tuple[float, int]],
    *,
    least: float | None = None,
    most: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the target with the worst of the (value, M) pairs, or nothing if there are none."""
    values = sorted(worst, reverse=least is None)
    if values:
        value, members = values[0]
        met = value >= least if least is not None else most is not None and value <= most
        limit = f"at least {least:g}" if least is not None else f"at most {most:g}"
        row = {"target": text, "network": network, "members": members, "value": round(value, 3)}
        yield {**row, "limit": limit, "met": bool(met)}


def cells(results: Results, what: str, precision: str = "32") -> dict[str, list[Cell]]:
    """Return the cells of each network."""
    chosen: dict[str, list[Cell]] = {}
    for cell in results["cells"]:
        if (cell["what"], cell["precision"]) == (what, precision):
            chosen.setdefault(cell["network"], []).append(cell)
    return chosen


def against_the_peer(results: Results) -> Iterator[dict[str, Any]]:
    for network, several in cells(results, "training").items():
        pairs = [
            (cell["candidates"][name]["of_peer"], cell["members"])
            for cell in several
            for name in ALONE
            if "of_peer" in cell["candidates"].get(name, {})
        ]
        yield from target("float32, without exchange, over Ensemble-PyTorch", network, pairs, least=1.4)


def against_the_peer_in_bf16(results: Results) -> Iterator[dict[str, Any]]:
    """Compare with the peer in float32, because it has no bf16."""
    plain = cells(results, "training")
    for network, several in cells(results, "training", "bf16-mixed").items():
        pairs = []
        for cell, other in ((cell, other) for cell in several for other in plain[network]):
            peer = fastest(other["candidates"], PEERS)
            if cell["members"] == other["members"] and peer and "AMCL" in cell["candidates"]:
                speed = cell["candidates"]["AMCL"]["images_per_second"]
                pairs.append((speed / other["candidates"][peer]["images_per_second"], cell["members"]))
        yield from target("bf16-mixed, without exchange, over Ensemble-PyTorch", network, pairs, least=2.0)


def against_bare(results: Results) -> Iterator[dict[str, Any]]:
    for precision in ("32", "bf16-mixed"):
        for network, several in cells(results, "training", precision).items():
            pairs = [
                (cell["candidates"][name]["of_bare"], cell["members"])
                for cell in several
                for name in ALONE
                if "of_bare" in cell["candidates"].get(name, {})
            ]
            text = f"{'float32' if precision == '32' else precision}, without exchange, over bare"
            yield from target(text, network, pairs, least=0.97)


def fusion(results: Results) -> Iterator[dict[str, Any]]:
    """Compare the share of fusion in the time of a step with its share of the multiply-adds of the forward pass."""
    for network, several in cells(results, "training").items():
        pairs = []
        for cell in several:
            if exchanging(cell, "AMCL fusion"):
                adds = {name: cell["operations"][name]["forward"] for name in ("AMCL", "AMCL fusion")}
                share = 1 - 1 / ratio(cell["candidates"], "AMCL fusion", "AMCL")
                pairs.append((share / (1 - adds["AMCL"] / adds["AMCL fusion"]), cell["members"]))
        yield from target("fusion's share of the time over its share of the multiply-adds", network, pairs, most=1.25)


def light(results: Results) -> Iterator[dict[str, Any]]:
    for network, several in cells(results, "training").items():
        pairs = [
            (ratio(cell["candidates"], "AMCL light", "AMCL") - 1, cell["members"])
            for cell in several
            if exchanging(cell, "AMCL light")
        ]
        most = 0.25 if network == "simple_cnn" else 0.1
        yield from target("light fusion's extra time", network, pairs, most=most)


def exchanging(cell: Cell, name: str) -> bool:
    """Return whether a cell has AMCL with and without that exchange, and several members."""
    return {"AMCL", name} <= set(cell["candidates"]) and cell["members"] > 1


def outside(results: Results) -> Iterator[dict[str, Any]]:
    for network, several in cells(results, "training").items():
        pairs = [
            (cell["candidates"][name]["outside"], cell["members"])
            for cell in several
            for name in ALONE
            if name in cell["candidates"]
        ]
        text = "share of a step outside forward, backward and optimiser"
        yield from target(text, network, pairs, most=0.03)


def ten_over_five(results: Results) -> Iterator[dict[str, Any]]:
    """Compare the times relative to the bare network of the same cell."""
    for network, several in cells(results, "training").items():
        times = {cell["members"]: ratio(cell["candidates"], "AMCL", "bare") for cell in several}
        if {5, 10} <= set(times):
            yield from target("time with M = 10 over time with M = 5", network, [(times[10] / times[5], 10)], most=2.05)


def lean(results: Results) -> Iterator[dict[str, Any]]:
    for network, several in cells(results, "training").items():
        one = next((cell["candidates"]["AMCL"] for cell in several if cell["members"] == 1), {})
        for cell in several:
            found = cell["candidates"]
            if "AMCL lean" in found:
                slower = [(ratio(found, "AMCL lean", "AMCL"), cell["members"])]
                yield from target("lean training's time over plain", network, slower, most=1.05)
                if one.get("tensors"):
                    more = [(found["AMCL lean"]["tensors"] / one["tensors"], cell["members"])]
                    yield from target("lean training's activations over those of M = 1", network, more, most=2.0)


def small_members(results: Results) -> Iterator[dict[str, Any]]:
    for network, several in cells(results, "small members").items():
        for cell in several:
            loop = fastest(cell["candidates"], ("loop", "loop, one optimiser"))
            if loop and "ensemble" in cell["candidates"]:
                faster = [(ratio(cell["candidates"], loop, "ensemble"), cell["members"])]
                yield from target("small members over a loop", network, faster, least=5.0)


def evaluation(results: Results) -> Iterator[dict[str, Any]]:
    for network, several in cells(results, "evaluation").items():
        pairs = [
            (cell["candidates"][name]["of_bare"], cell["members"])
            for cell in several
            for name in ALONE
            if name in cell["candidates"]
        ]
        yield from target("evaluation over a bare forward", network, pairs, least=0.97)


TARGETS = (
    against_the_peer,
    against_the_peer_in_bf16,
    against_bare,
    fusion,
    light,
    outside,
    ten_over_five,
    lean,
    small_members,
    evaluation,
)
