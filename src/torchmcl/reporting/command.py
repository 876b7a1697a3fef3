import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torchmcl._utils.validation import OWN
from torchmcl.training.config import TrainConfig
from torchmcl.training.machine import Machine

ALWAYS = ("method", "network", "data", "members")
DECIDE = (*ALWAYS, "epochs", "seed")  # options that the defaults of others depend on
SWITCHES = {"tensorboard", *(field.name for field in fields(Machine) if isinstance(field.default, bool))}


def command(config: Mapping[str, Any], out: str) -> str | None:
    """The line that trains a run anew from what its config.yaml says; None for parts that have no name.

    >>> command({"method": "amcl", "network": "mlp", "data": "digits", "members": 2, "seed": 0, "beta": 0.1}, "runs/a")
    'torchmcl train --method amcl --network mlp --data digits --members 2 --beta 0.1 --out runs/a'
    """
    if any(config.get(name) is None or str(config[name]).startswith(OWN) for name in ALWAYS):
        return None
    usual = TrainConfig.of(**{name: config[name] for name in DECIDE if name in config}).resolved().flat()
    usual |= {"seed": 0, "epochs": TrainConfig.of(data=config["data"]).resolved().recipe.epochs}
    words = ["torchmcl", "train"]
    for name in (*ALWAYS, *(name for name in config if name not in ALWAYS)):
        value = config[name]
        if name not in ALWAYS and value in (None, "default", usual.get(name)):
            continue
        words += [f"--{name}"] if name in SWITCHES else [f"--{name}", _word(value)]
    return shlex.join([*words, "--out", out])


def _word(value: Any) -> str:
    """An option's value as it is typed."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return str(value) if isinstance(value, str) else json.dumps(value)
