import torch
from torch.autograd import forward_ad


def custom_grad() -> bool:
    """Return whether to use functions with a custom backward pass, which write less to memory.

    The gradients of these functions can be differentiated again. Within `torch.func` transforms, forward-mode
    differentiation and the compiler, plain operations compute the same formulas instead.
    """
    plain = torch.compiler.is_compiling() or in_functorch_transform() or forward_ad._current_level >= 0
    return torch.is_grad_enabled() and not plain


def in_functorch_transform() -> bool:
    """Return whether the code runs within a `torch.func` transform, such as `grad` or `vmap`."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
