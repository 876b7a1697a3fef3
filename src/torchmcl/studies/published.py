"""The numbers of Kim et al. 2022, as printed; `published.json` has every table."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from torchmcl.errors import known_name


@dataclass(frozen=True)
class Published:
    """Errors in percent, with the standard deviation where the paper gives one, and the whole row."""

    oracle: float
    top1: float
    oracle_std: float | None
    top1_std: float | None
    row: dict[str, Any]


@cache
def tables() -> dict[str, Any]:
    """All tables, by study."""
    loaded: dict[str, Any] = json.loads(files("torchmcl.studies").joinpath("published.json").read_text())
    return loaded


def rows(study: str) -> list[dict[str, Any]]:
    """The rows of a study's published table.

    >>> len(rows("ablation"))
    8
    """
    known_name("published table", study, tables())
    return list(tables()[study]["rows"])


def find(study: str, **where: Any) -> Published | None:
    """The published row that has these values, if there is one.

    >>> find("ablation", method="amcl", memory=True, fusion=True).top1
    9.74
    >>> find("overlap", method="amcl", K=3, dataset="cifar10").oracle_std
    0.1
    """
    for row in rows(study):
        if all(row.get(name) == value for name, value in where.items()):
            (oracle, oracle_std), (top1, top1_std) = _pair(row["oracle"]), _pair(row["top1"])
            return Published(oracle, top1, oracle_std, top1_std, row)
    return None


def _pair(value: float | dict[str, float]) -> tuple[float, float | None]:
    return (value["mean"], value["std"]) if isinstance(value, dict) else (value, None)
