import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

TOLD = ("data", "network", "width", "members", "k", "exchange", "memory", "balance", "beta", "gamma", "warmup")


@dataclass(frozen=True)
class Spec:
    """One run: the keyword arguments of `torchmcl.fit`, and what to record of it besides the usual.

    Its `hash` is that of the resolved configuration, every default spelled out: studies that ask for the same training
    in different words share it, and results of an earlier default no longer match once the default changes.

    >>> one, two = Spec({"method": "amcl", "k": 1, "seed": 0}), Spec({"method": "amcl", "beta": 0.01}, ("flow",))
    >>> one.hash == two.hash, len(one.hash), one.label
    (True, 16, 'amcl k 1, seed 0')
    """

    options: Mapping[str, Any]
    record: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        plain = {name: value for name, value in sorted(self.options.items()) if value is not None}
        object.__setattr__(self, "options", plain)
        object.__setattr__(self, "record", tuple(sorted(set(self.record))))

    def __hash__(self) -> int:
        return hash((canonical(self.options), self.record))

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """The resolved configuration of the training, see `TrainConfig.identity`."""
        from torchmcl.training.config import TrainConfig

        return TrainConfig.of(**self.options).identity()

    @cached_property
    def hash(self) -> str:
        """16 hex digits of the resolved configuration's SHA-256."""
        return digest(self.configuration)

    @property
    def label(self) -> str:
        """A short name for people."""
        told = [f"{name} {self.options[name]}" for name in TOLD if name in self.options]
        return f"{' '.join([str(self.options.get('method', 'amcl')), *told])}, seed {self.options.get('seed', 0)}"


def canonical(options: Mapping[str, Any]) -> str:
    """Options as JSON that is the same in whatever order they are given."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def digest(configuration: Mapping[str, Any]) -> str:
    """16 hex digits of a configuration's SHA-256."""
    return sha256(canonical(configuration).encode()).hexdigest()[:16]
