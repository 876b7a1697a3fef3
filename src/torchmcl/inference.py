"""The inference pass: everything that reads an ensemble's outputs without training it goes through `outputs`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from torchmcl.opinions import Opinions

Item = TypeVar("Item", bound=Tensor | tuple)


def outputs(ensemble: Callable[[Tensor], Opinions], batches: Iterable[Item]) -> Iterator[tuple[Item, Opinions]]:
    """Run an ensemble over batches in evaluation mode, one at a time -> each batch with the members' outputs.

    A batch is an input (B, …) as the members read it, or a tuple that begins with one, such as `data.loader.Batch`.
    Gradients are disabled in the forward pass only. The mode of every module is restored when the iterator ends, is
    closed or raises.

    >>> ensemble = nn.Linear(4, 2)
    >>> [(x.shape, logits.requires_grad, ensemble.training) for x, logits in outputs(ensemble, torch.ones(1, 3, 4))]
    [(torch.Size([3, 4]), False, False)]
    >>> ensemble.training
    True
    """
    with evaluating(ensemble):
        for batch in batches:
            with torch.no_grad():
                said = ensemble(batch if isinstance(batch, Tensor) else batch[0])
            yield batch, said


@contextmanager
def evaluating(ensemble: object) -> Iterator[None]:
    """Put a module into evaluation mode, and each of its parts back into its own mode afterwards."""
    parts = list(ensemble.modules()) if isinstance(ensemble, nn.Module) else []
    before = [part.training for part in parts]
    if isinstance(ensemble, nn.Module):
        ensemble.eval()
    try:
        yield
    finally:
        for part, mode in zip(parts, before, strict=True):
            if part.training != mode:  # parents come first, so that what they do to their parts is put right
                part.train(mode)
