from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class OneDevice:
    """A training on one device, in this process and in the weights' own precision: what a training uses of Fabric.

    It is for trainings that are small, many, or inside someone else's program: importing Fabric takes two seconds and
    setting it up some milliseconds, and Fabric looks for a cluster in the environment, SLURM's for example.

    >>> network = nn.Linear(2, 1).double()
    >>> same, _ = OneDevice("cpu").setup(network, torch.optim.SGD(network.parameters()))
    >>> same is network, same.weight.dtype
    (True, torch.float64)
    """

    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)

    def setup(self, module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """The same two, on the device."""
        return module.to(self.device), optimizer

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients."""
        loss.backward()

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, *, max_norm: float, error_if_nonfinite: bool = False
    ) -> Any:
        """Scale the gradient of all weights down to a norm of at most `max_norm` -> the norm it had."""
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def autocast(self) -> AbstractContextManager:
        """Compute in the weights' own precision."""
        return nullcontext()
