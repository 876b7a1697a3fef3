"""The statements of Kim et al. 2022 that the studies judge (see `statements`)."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from torchmcl.studies.definitions import auxiliary, confidence
from torchmcl.studies.statements import Lower, PublishedRow, Quantity, Statement, Within
from torchmcl.studies.study import Results

RIVALS = ("smcl", "cmcl", "vmcl")
ERRORS = ("oracle", "top-1")
Pairs = dict[str, tuple[PublishedRow, PublishedRow]]


def _versus(prefix: str, others: Iterable[str], *, own: PublishedRow = {}, **row: Any) -> Pairs:  # noqa: B006
    """Return the pairs of AMCL and other methods, with the values that select their published rows."""
    return {
        f"{prefix}amcl minus {other}": ({**row, "method": "amcl", **own}, {**row, "method": other}) for other in others
    }


def _both(text: str, place: str, study: str, pairs: Pairs, scale: str = "standard") -> list[Statement]:
    """Return a statement about the oracle error and one about the top-1 error; `text` contains {error}."""
    return [Lower(text.format(error=error), place, study, error, pairs, scale) for error in ERRORS]


def _networks(data: str) -> Pairs:
    networks = ("vgg16", "resnet34", "googlenet")
    parts = [_versus(f"{name}, {data}: ", RIVALS, network=name, dataset=data) for name in networks]
    return {name: pair for part in parts for name, pair in part.items()}


def _size(data: str) -> Pairs:
    return {
        name: pair for k in (1, 4) for name, pair in _versus(f"{data}, K = {k}: ", RIVALS, dataset=data, K=k).items()
    }


def _overlap(data: str) -> Pairs:
    rows = {k: {"method": "amcl", "dataset": data, "K": k} for k in (1, 2, 3, 4)}
    return {f"{data}: amcl K = {k} minus amcl K = 1": (rows[k], rows[1]) for k in (2, 3, 4)}


def _masks() -> Pairs:
    return {name: pair for m in (2, 3, 4, 5) for name, pair in _versus(f"M = {m}: ", RIVALS, M=m).items()}


def _penalties(*cells: tuple[float, float]) -> Pairs:
    return {
        f"beta 0.01, gamma 0.5 minus beta {beta:g}, gamma {gamma:g}": (
            {"beta": 0.01, "gamma": 0.5},
            {"beta": beta, "gamma": gamma},
        )
        for beta, gamma in cells
    }


def _confidence(method: str) -> Quantity:
    def median(results: Results) -> list[float]:
        own, names = results.of(confidence.spec, results.scale, method), confidence.classes(results.scale)
        return [float(np.mean([one["test"]["median_confidence"][name] for name in names])) for one in own]

    return median


def _auxiliary(part: str) -> Quantity:
    return lambda results: [one["auxiliary"][part]["median"] for one in auxiliary.records(results, "amcl")]


def _margin(rival: str) -> Quantity:
    """Return by how much AMCL's margin between others' and own classes exceeds that of a rival, per common seed."""

    def larger(results: Results) -> list[float]:
        own, others = (
            {
                result["seed"]: record["cross_entropy"]["others'"]["mean"] - record["cross_entropy"]["own"]["mean"]
                for result, record in zip(
                    results.of(auxiliary.spec, results.scale, method), auxiliary.records(results, method), strict=True
                )
            }
            for method in ("amcl", rival)
        )
        return [margin - others[seed] for seed, margin in own.items() if seed in others]

    return larger


def _purity(results: Results) -> list[float]:
    return [one["purity"] for one in results.of(auxiliary.spec, results.scale, "amcl")]


FULL = {"memory": True, "fusion": True}  # the published row with all components
MEMORY: PublishedRow = {"table": "ablation", "method": "amcl", "memory": True, "fusion": False}
NEITHER: PublishedRow = {"table": "ablation", "method": "amcl", "memory": False, "fusion": False}
FUSION: PublishedRow = {"exchange": "feature_fusion"}

STATEMENTS: tuple[Statement, ...] = (
    Within(
        "AMCL's confidence in the true class is near 1 (0.95 to 1).",
        "figure 2",
        "confidence",
        _confidence("amcl"),
        low=0.95,
        published="near 1",
        scale="scratch",
    ),
    Within(
        "CMCL's confidence in the true class is near 0.75 (0.65 to 0.85).",
        "figure 2",
        "confidence",
        _confidence("cmcl"),
        low=0.65,
        high=0.85,
        published="near 0.75",
        scale="scratch",
    ),
    *_both("AMCL has a lower {error} error than IE.", "table 1", "ablation", _versus("", ("ie",), own=FULL)),
    *_both(
        "AMCL has a lower {error} error than sMCL, CMCL and vMCL.", "table 1", "ablation", _versus("", RIVALS, own=FULL)
    ),
    *_both(
        "The memory lowers AMCL's {error} error.",
        "table 1",
        "ablation",
        {"amcl minus amcl without memory": (MEMORY, NEITHER)},
    ),
    *_both(
        "Feature fusion lowers AMCL's {error} error.",
        "table 1",
        "exchange",
        {"feature fusion minus none": (FUSION, MEMORY)},
        "scratch",
    ),
    *_both(
        "Feature fusion gives a lower {error} error than weight sharing and feature sharing.",
        "table 2",
        "exchange",
        {
            f"feature fusion minus {name.replace('_', ' ')}": (FUSION, {"exchange": name})
            for name in ("weight_sharing", "feature_sharing")
        },
        "scratch",
    ),
    *(
        one
        for data in ("cifar10", "cifar100")
        for one in _both(
            f"With every network, AMCL has a lower {{error}} error than sMCL, CMCL and vMCL ({data}).",
            "table 3",
            "networks",
            _networks(data),
        )
    ),
    *(
        one
        for data in ("cifar10", "cifar100")
        for one in _both(
            f"AMCL has a lower {{error}} error than IE, EMADNN, ONE and KDCL ({data}).",
            "table 4",
            "non_mcl",
            _versus(
                f"preact_resnet10, {data}: ",
                ("ie", "emadnn", "one", "kdcl"),
                network="preact_resnet10",
                dataset=data,
            ),
        )
    ),
    *_both(
        "With 2 to 5 members, AMCL segments with a lower {error} error than sMCL, CMCL and vMCL.",
        "table 5",
        "segmentation",
        _masks(),
    ),
    Lower(
        "A large beta (0.2, 0.5) raises the oracle error.",
        "table 6",
        "penalties",
        "oracle",
        _penalties((0.2, 0.5), (0.5, 0.5)),
    ),
    Lower("A small gamma (0.01) raises the top-1 error.", "table 6", "penalties", "top-1", _penalties((0.01, 0.01))),
    *(
        Lower(
            f"K = 2, 3 and 4 give AMCL a lower top-1 error than K = 1 ({data}).",
            "table 7",
            "overlap",
            "top-1",
            _overlap(data),
        )
        for data in ("cifar10", "cifar100")
    ),
    *(
        one
        for data in ("cifar10", "cifar100")
        for one in _both(
            f"With ten members and K = 1 or 4, AMCL has a lower {{error}} error than sMCL, CMCL and vMCL ({data}).",
            "table 8",
            "size",
            _size(data),
        )
    ),
    Within(
        "The auxiliary probability of other members' classes is near 1 (0.9 to 1).",
        "figure 3",
        "auxiliary",
        _auxiliary("others'"),
        low=0.9,
    ),
    Within(
        "The auxiliary probability of unseen data is near 1 (0.9 to 1).",
        "figure 3",
        "auxiliary",
        _auxiliary("unseen"),
        low=0.9,
    ),
    *(
        Within(
            f"The cross-entropy separates own and others' classes better in AMCL than in {name} (margin, difference).",
            "figure 3",
            "auxiliary",
            _margin(rival),
            low=0.0,
        )
        for rival, name in (("cmcl", "CMCL"), ("vmcl", "vMCL"))
    ),
    Within("AMCL's assignments are pure (99 to 100 %).", "figure 5", "auxiliary", _purity, low=99.0),
)
