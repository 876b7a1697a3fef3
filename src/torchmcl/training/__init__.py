"""Training: `fit` an ensemble on data, evaluate it, resume it."""

from typing import TYPE_CHECKING, Any

from torchmcl.training.callbacks import Callback
from torchmcl.training.machine import Machine
from torchmcl.training.recipe import Recipe

if TYPE_CHECKING:
    from torchmcl.training.fitting import fit

__all__ = ["Callback", "Machine", "Recipe", "fit"]


def __getattr__(name: str) -> Any:
    if name == "fit":  # imports torch, which help texts and configurations do without
        from torchmcl.training.fitting import fit

        return fit
    raise AttributeError(f"module 'torchmcl.training' has no attribute {name!r}")
