"""When to use `torch.autograd.Function` classes with a hand-written backward pass."""

import torch
from torch.autograd import forward_ad


def use_custom_backward() -> bool:
    """Return whether to use hand-written backward passes, which write less memory and can be differentiated again.

    `torch.func`, forward-mode derivatives and the compiler use the same formulas in plain operations instead.
    """
    plain = torch.compiler.is_compiling() or in_functorch_transform() or forward_ad._current_level >= 0
    return torch.is_grad_enabled() and not plain


def in_functorch_transform() -> bool:
    """Return whether this runs within `torch.func.grad`, `vmap` or another such transform."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
