import torch
from torch.autograd import forward_ad


def custom_grad() -> bool:
    """Return whether to use functions with a custom backward pass, which write less to memory.

    Their gradients can be differentiated again. `torch.func`, forward-mode derivatives and the compiler use the same
    formulas with plain operations.
    """
    plain = torch.compiler.is_compiling() or in_functorch_transform() or forward_ad._current_level >= 0
    return torch.is_grad_enabled() and not plain


def in_functorch_transform() -> bool:
    """Return whether the code runs within `torch.func.grad`, `vmap` or another of these transforms."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
