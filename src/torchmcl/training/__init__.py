"""Training: `fit`, its configuration, the training loop, callbacks, loggers, checkpoints and the run folder.

The code in this folder updates weights, and reads and writes the files of a run. See `objectives` for losses,
`assignment` for assignment rules, `methods` for methods, and `inference` for predictions with a trained ensemble.
"""

from typing import TYPE_CHECKING, Any

from torchmcl.training.callbacks import Callback
from torchmcl.training.machine import Machine
from torchmcl.training.recipe import Recipe

if TYPE_CHECKING:
    from torchmcl.training.fitting import fit

__all__ = ["Callback", "Machine", "Recipe", "fit"]


def __getattr__(name: str) -> Any:
    if name == "fit":  # imported on demand, because help texts and configurations must not import torch
        from torchmcl.training.fitting import fit

        return fit
    raise AttributeError(f"module 'torchmcl.training' has no attribute {name!r}")
