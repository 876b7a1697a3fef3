import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torchmcl._utils.validation import OWN
from torchmcl.serialization.data_config import DataConfig
from torchmcl.training.config import TrainConfig
from torchmcl.training.machine import Machine

REQUIRED = ("method", "network", "data", "members")
FIRST = (*REQUIRED, "epochs", "seed")  # options on which the defaults of other options depend
SWITCHES = {
    "tensorboard",
    *(field.name for field in fields(Machine) if isinstance(field.default, bool)),
    *(f"data_{field.name}" for field in fields(DataConfig) if isinstance(field.default, bool)),
}


def train_command(config: Mapping[str, Any], out: str) -> str | None:
    """Return the command that repeats a run with the given config.yaml, or None if the run used custom objects.

    >>> config = {"method": "amcl", "network": "mlp", "data": "digits", "members": 2, "seed": 0, "beta": 0.1}
    >>> train_command(config, "runs/a")
    'torchmcl train --method amcl --network mlp --data digits --members 2 --beta 0.1 --out runs/a'
    """
    if any(config.get(name) is None or str(config[name]).startswith(OWN) for name in REQUIRED):
        return None
    defaults = TrainConfig.of(**{name: config[name] for name in FIRST if name in config}).resolved().flat()
    defaults |= {"seed": 0, "epochs": TrainConfig.of(data=config["data"]).resolved().recipe.epochs}
    words = ["torchmcl", "train"]
    for name in (*REQUIRED, *(name for name in config if name not in REQUIRED)):
        value = config[name]
        if name not in REQUIRED and value in (None, "default", defaults.get(name)):
            continue
        words += _option(name, value)
    return shlex.join([*words, "--out", out])


def report_command(
    runs: Sequence[str | Path], out: str | Path, *, source: DataConfig | None = None, **options: Any
) -> str:
    """Return the command that writes a report.

    >>> source = DataConfig(limit=9, skip_unreadable=True)
    >>> report_command(["runs/a"], "a.html", source=source, unseen="svhn", data=None)
    'torchmcl report runs/a -o a.html --unseen svhn --data_limit 9 --data_skip_unreadable'
    """
    values, defaults = asdict(source or DataConfig()), asdict(DataConfig())
    options |= {f"data_{name}": value for name, value in values.items() if value != defaults[name]}
    words = [word for name, value in options.items() if value is not None for word in _option(name, value)]
    return shlex.join(["torchmcl", "report", *map(str, runs), "-o", str(out), *words])


def _option(name: str, value: Any) -> list[str]:
    return [f"--{name}"] if name in SWITCHES else [f"--{name}", _format(value)]


def _format(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return str(value) if isinstance(value, str) else json.dumps(value)
