from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchmcl.data.examples import Examples
from torchmcl.inference.predictor import Specialists


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluated:
    """What the evaluations of all runs have, whether they predict classes or numbers.

    Args:
        name: the name of the run in figures
        specialists: the ensemble
        examples: the test set
        metrics: the metrics on the test set, as printed by `torchmcl evaluate`
        training_metrics: the content of metrics.json, written after training
        config: the content of config.yaml
        history: the rows of log.csv, one per epoch
        run: the folder of the run
    """

    name: str
    specialists: Specialists
    examples: Examples
    metrics: dict[str, Any]
    training_metrics: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    history: Sequence[dict[str, Any]] = ()
    run: str = ""

    @property
    def members(self) -> int:
        """The number of members."""
        return self.specialists.method.members

    @property
    def k(self) -> int:
        """The number of members that take each example."""
        return self.specialists.method.k
