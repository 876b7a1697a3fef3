"""Inference with a trained ensemble: prediction, rejection, unseen-data scores and export.

See `training` for training, `serialization` for model files, and `analysis` for evaluation on whole data sets.
"""

from torchmcl.inference.answers import Answer
from torchmcl.inference.predictor import Specialists

__all__ = ["Answer", "Specialists"]
