"""Functions that upgrade files written by earlier versions, which did not store the default values of options."""

from collections.abc import Mapping
from typing import Any

# Earlier defaults that have since changed. Durations were numbers of epochs, independent of the length of the schedule.
EARLIER_DEFAULTS: dict[str, dict[str, Any]] = {
    "amcl": {"warmup": 5},
    "annealed": {"decay": 0.95},
    "mcl_kd": {"pretrain": 10},
    "one": {"rampup": 80},
}


def upgraded_options(method: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of earlier versions to the stored options of a method.

    >>> upgraded_options("amcl", {"k": 2})
    {'warmup': 5, 'k': 2}
    """
    return {**EARLIER_DEFAULTS.get(method or "", {}), **options}


def is_earlier(config: Mapping[str, Any]) -> bool:
    """Return whether a run's config.yaml was written by an earlier version, which did not store all defaults."""
    return "data_seed" not in config


def upgraded_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Upgrade a run's config.yaml to the current version. In earlier versions, splits used the seed of the run.

    >>> upgraded_config({"method": "amcl", "data": "digits", "seed": 3})["data_seed"]
    3
    """
    if not is_earlier(config):
        return dict(config)
    return {**upgraded_options(config.get("method"), config), "data_seed": config.get("seed", 0)}
