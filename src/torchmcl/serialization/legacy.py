"""Files of earlier versions, which left options at the defaults of their time: read as what they meant then."""

from collections.abc import Mapping
from typing import Any

# Defaults that have changed since: durations were numbers of epochs, whatever the schedule.
EARLIER_DEFAULTS: dict[str, dict[str, Any]] = {
    "amcl": {"warmup": 5},
    "annealed": {"decay": 0.95},
    "mcl_kd": {"pretrain": 10},
    "one": {"rampup": 80},
}


def upgraded_options(method: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method with the defaults that they had when they were not spelled out.

    >>> upgraded_options("amcl", {"k": 2})
    {'warmup': 5, 'k': 2}
    """
    return {**EARLIER_DEFAULTS.get(method or "", {}), **options}


def is_earlier(config: Mapping[str, Any]) -> bool:
    """Whether a run's config.yaml was written before every default was spelled out."""
    return "data_seed" not in config


def upgraded_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's config.yaml as it would be written now; the seed of the splits used to be that of the training.

    >>> upgraded_config({"method": "amcl", "data": "digits", "seed": 3})["data_seed"]
    3
    """
    if not is_earlier(config):
        return dict(config)
    return {**upgraded_options(config.get("method"), config), "data_seed": config.get("seed", 0)}
