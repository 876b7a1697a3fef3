from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class OneDevice:
    """A minimal replacement for Lightning Fabric that uses one process, one device, and the precision of the weights.

    Use this class for many small runs, or to train inside another program. Fabric takes two seconds to import and
    several milliseconds to set up, and it searches the environment for a cluster such as SLURM.

    >>> network = nn.Linear(2, 1).double()
    >>> same, _ = OneDevice("cpu").setup(network, torch.optim.SGD(network.parameters()))
    >>> same is network, same.weight.dtype
    (True, torch.float64)
    """

    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)

    def setup(self, module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Move the module to the device."""
        return module.to(self.device), optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, *, max_norm: float, error_if_nonfinite: bool = False
    ) -> Any:
        """Scale all gradients to a total norm of at most `max_norm` and return the norm before clipping."""
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def autocast(self) -> AbstractContextManager:
        """Return a context in which operations run in the precision of the weights."""
        return nullcontext()
