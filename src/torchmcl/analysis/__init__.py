"""Evaluation of trained runs, Grad-CAM, and the figures that are drawn from an evaluation.

Each file in `figures` draws one figure from one or more `RunEvaluation` objects. See `reporting` and `explorer` for web
pages, and `studies` for tables of results.

>>> from torchmcl.analysis.figures import catalogue
>>> [entry.name for entry in catalogue.FIGURES][:2]
['learning_curves', 'who_knows_what']
"""

from torchmcl.analysis.evaluation import calibrate_run, evaluate_run
from torchmcl.analysis.run_evaluation import RunEvaluation

__all__ = ["RunEvaluation", "calibrate_run", "evaluate_run"]
