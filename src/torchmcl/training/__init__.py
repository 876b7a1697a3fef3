"""Training: `fit` an ensemble on data, evaluate it, resume it."""

from torchmcl.training.evaluate import evaluate
from torchmcl.training.fit import fit
from torchmcl.training.machine import Machine
from torchmcl.training.recipe import Recipe

__all__ = ["Machine", "Recipe", "evaluate", "fit"]
