import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

TOLD = ("data", "network", "width", "members", "k", "exchange", "memory", "balance", "beta", "gamma", "warmup")


@dataclass(frozen=True)
class Spec:
    """One run: the keyword arguments of `torchmcl.training.fit`, and what to record of it besides the usual.

    Its `hash` is that of the training alone, so that studies which ask different things of one training share it.

    >>> one, two = Spec({"method": "amcl", "k": 1, "seed": 0}), Spec({"seed": 0, "k": 1, "method": "amcl"}, ("flow",))
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
        return hash((self.canonical, self.record))

    @property
    def canonical(self) -> str:
        """The options as JSON that is the same wherever and however they were given."""
        return json.dumps(self.options, sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        """16 hex digits of the configuration's SHA-256."""
        return sha256(self.canonical.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A short name for people."""
        told = [f"{name} {self.options[name]}" for name in TOLD if name in self.options]
        return f"{' '.join([str(self.options.get('method', 'amcl')), *told])}, seed {self.options.get('seed', 0)}"
