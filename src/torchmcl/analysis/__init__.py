"""Evaluation of trained runs on data sets, Grad-CAM, and the figures drawn from an evaluation.

Each file in `figures` draws one figure from one or more `RunEvaluation` objects. See `reporting` and `explorer` for web
pages, and `studies` for the tables of the studies.

>>> from torchmcl.analysis.figures import catalogue
>>> [entry.name for entry in catalogue.FIGURES][:2]
['assignment_matrix', 'share_over_time']
"""

from torchmcl.analysis.evaluation import calibrate_run, evaluate_run
from torchmcl.analysis.run_evaluation import RunEvaluation

__all__ = ["RunEvaluation", "calibrate_run", "evaluate_run"]
