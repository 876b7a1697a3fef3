"""Whether a hand-written backward pass may replace autograd's."""

import torch
from torch.autograd import forward_ad


def by_hand() -> bool:
    """Whether to use the functions below that have their own backward pass, which writes less to memory.

    Their gradients can be differentiated again. `torch.func`, forward-mode derivatives and the compiler are given the
    same formulas in plain operations.
    """
    plain = torch.compiler.is_compiling() or transformed() or forward_ad._current_level >= 0
    return torch.is_grad_enabled() and not plain


def transformed() -> bool:
    """Whether this runs within `torch.func.grad`, `vmap` or another of these transforms."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
