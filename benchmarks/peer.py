"""Ensemble-PyTorch, used as documented: an estimator class, `set_optimizer`, and `fit` with a DataLoader."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
import torchensemble
from bare import CLASSES, FEW, SGD, prepared
from gate import Gate
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from torchmcl import networks


class Estimator(nn.Module):
    """The same network in the default memory layout."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.network = networks.build(name, CLASSES, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class Waiting(DataLoader):
    """A loader of batches in memory that waits at the gate before the first of every `passes` passes."""

    def __init__(self, gate: Gate, batch: int, count: int, passes: int) -> None:
        x, target = prepared(count)
        data = TensorDataset(x.contiguous(), target)  # the default memory layout
        data.classes = list(range(CLASSES))  # otherwise `fit` reads all data once to count them
        # Indexing a batch at once is faster than collating single examples.
        super().__init__(data, sampler=BatchSampler(RandomSampler(data), batch, drop_last=True), batch_size=None)
        self.gate, self.passes, self.passed = gate, passes, 0

    def __iter__(self) -> Iterator[list[Tensor]]:
        for x, target in super().__iter__():
            if self.passes == 1 or self.passed % self.passes == 0:
                self.gate()
            self.passed += 1
            size = min(FEW, len(x)) if self.passed <= self.passes else len(x)
            yield [x[:size], target[:size]]
            if self.passes > 1:
                return


def train(
    gate: Gate, *, classifier: str, network: str, members: int, batch: int = 128, count: int = 6400, **options: Any
) -> None:
    """Run `FusionClassifier`, or `VotingClassifier` with epochs of one batch, because it trains members in sequence."""
    logging.getLogger().setLevel(logging.ERROR)
    model = getattr(torchensemble, classifier)(
        estimator=Estimator,
        n_estimators=members,
        estimator_args={"name": network, "options": options},
        cuda=torch.cuda.is_available(),
    )
    model.set_optimizer("SGD", **SGD)
    loader = Waiting(gate, batch, count, passes=members if classifier == "VotingClassifier" else 1)
    model.fit(loader, epochs=10**6, save_model=False)


KINDS = {"peer": train}
