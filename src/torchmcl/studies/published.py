"""The published numbers of Kim et al. 2022; `published.json` holds every table."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from torchmcl.errors import known_name


@dataclass(frozen=True)
class Published:
    """Published errors in percent, their standard deviations if the paper gives them, and the complete table row."""

    oracle: float
    top1: float
    oracle_std: float | None
    top1_std: float | None
    row: dict[str, Any]


@cache
def tables() -> dict[str, Any]:
    """Return all published tables, keyed by the name of the study."""
    loaded: dict[str, Any] = json.loads(files("torchmcl.studies").joinpath("published.json").read_text())
    return loaded


def rows(study: str) -> list[dict[str, Any]]:
    """Return the rows of a study's published table.

    >>> len(rows("ablation"))
    8
    """
    known_name("published table", study, tables())
    return list(tables()[study]["rows"])


def find(study: str, **where: Any) -> Published | None:
    """Return the first published row with the given values, or None if there is no such row.

    >>> find("ablation", method="amcl", memory=True, fusion=True).top1
    9.74
    >>> find("overlap", method="amcl", K=3, dataset="cifar10").oracle_std
    0.1
    """
    for row in rows(study):
        if all(row.get(name) == value for name, value in where.items()):
            (oracle, oracle_std), (top1, top1_std) = _mean_and_std(row["oracle"]), _mean_and_std(row["top1"])
            return Published(oracle, top1, oracle_std, top1_std, row)
    return None


def _mean_and_std(value: float | dict[str, float]) -> tuple[float, float | None]:
    return (value["mean"], value["std"]) if isinstance(value, dict) else (value, None)
