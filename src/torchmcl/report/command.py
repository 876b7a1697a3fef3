import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from torchmcl.training.machine import Machine
from torchmcl.training.recipe import Recipe
from torchmcl.training.source import Source

ALWAYS = ("method", "network", "data", "members")
OWN = {
    "exchange": "default",
    "preset": "default",
    "unit": "image",
    "seed": 0,
    "checkpoint_steps": 1000,
    "tensorboard": False,
}


def command(config: Mapping[str, Any], out: str) -> str | None:
    """The line that trains a run anew from what its config.yaml says; None for parts that have no name.

    >>> command({"method": "amcl", "network": "mlp", "data": "digits", "members": 2, "seed": 0, "beta": 0.1}, "runs/a")
    'torchmcl train --method amcl --network mlp --data digits --members 2 --beta 0.1 --out runs/a'
    """
    if any(config.get(name) is None for name in ALWAYS):
        return None
    usual, switches = dict(OWN), {"tensorboard"}
    for kind, prefix in ((Recipe, ""), (Machine, ""), (Source, "data_")):
        hints = get_type_hints(kind)
        usual |= {f"{prefix}{field.name}": field.default for field in fields(kind) if field.default is not MISSING}
        switches |= {f"{prefix}{field.name}" for field in fields(kind) if hints[field.name] is bool}
    words = ["torchmcl", "train"]
    for name in (*ALWAYS, *(name for name in config if name not in ALWAYS)):
        value = config[name]
        if name in switches:
            words += [f"--{name}"] if value else []
        elif name in ALWAYS or value != usual.get(name, MISSING):
            words += [f"--{name}", str(value).lower() if isinstance(value, bool) else str(value)]
    return shlex.join([*words, "--out", out])
