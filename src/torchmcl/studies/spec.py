import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

IN_LABEL = (
    "data",
    "network",
    "width",
    "members",
    "k",
    "exchange",
    "memory",
    "balance",
    "slack",
    "beta",
    "gamma",
    "warmup",
)
# A table looks up the same runs many times, and resolving a configuration takes milliseconds.
_HASHES: dict[str, str] = {}


@dataclass(frozen=True)
class Spec:
    """One run of a study.

    Runs are identified by the `hash` of their resolved configuration, which includes every default. Studies that
    describe the same run in different ways share its result. If a default changes, so does the hash.

    Args:
        options: keyword arguments of `torchmcl.fit`
        record: names of additional records to store, see `torchmcl.studies.records`
        name: name of the run folder; by default, the hash

    >>> one, two = Spec({"method": "amcl", "k": 1, "seed": 0}), Spec({"method": "amcl", "beta": 0.01}, ("flow",))
    >>> one.hash == two.hash, len(one.hash), one.label
    (True, 16, 'amcl k 1, seed 0')
    """

    options: Mapping[str, Any]
    record: tuple[str, ...] = field(default=())
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        given = {name: value for name, value in sorted(self.options.items()) if value is not None}
        object.__setattr__(self, "options", given)
        object.__setattr__(self, "record", tuple(sorted(set(self.record))))

    def __hash__(self) -> int:
        return hash((canonical(self.options), self.record))

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """The resolved configuration of the run (see `TrainConfig.identity`)."""
        from torchmcl.training.config import TrainConfig

        return TrainConfig.of(**self.options).identity()

    @cached_property
    def hash(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the resolved configuration."""
        options = canonical(self.options)
        if options not in _HASHES:
            _HASHES[options] = digest(self.configuration)
        return _HASHES[options]

    @property
    def folder(self) -> str:
        """The name of the run folder."""
        return self.name or self.hash

    @property
    def label(self) -> str:
        """A short readable name."""
        if self.name:
            return self.name
        parts = [f"{name} {self.options[name]}" for name in IN_LABEL if name in self.options]
        return f"{' '.join([str(self.options.get('method', 'amcl')), *parts])}, seed {self.options.get('seed', 0)}"


def canonical(options: Mapping[str, Any]) -> str:
    """Return options as JSON that does not depend on their order."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def digest(configuration: Mapping[str, Any]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a configuration."""
    return sha256(canonical(configuration).encode()).hexdigest()[:16]
