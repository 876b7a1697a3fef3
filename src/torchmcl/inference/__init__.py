"""Inference: a trained ensemble that answers, rejects, scores unseen data and is exported.

Nothing here trains; evaluation over data sets belongs to `analysis`.
"""

from torchmcl.inference.answers import Answer
from torchmcl.inference.predictor import Specialists

__all__ = ["Answer", "Specialists"]
