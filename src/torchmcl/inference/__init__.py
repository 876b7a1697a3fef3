"""Inference with a trained ensemble: prediction, rejection, unseen-data scores and export.

Training belongs in `training`, model files in `serialization`, and evaluation over whole data sets in `analysis`.
"""

from torchmcl.inference.answers import Answer
from torchmcl.inference.predictor import Specialists

__all__ = ["Answer", "Specialists"]
