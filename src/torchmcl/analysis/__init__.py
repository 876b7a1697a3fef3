"""Evaluation of trained runs on data sets, Grad-CAM, and the figures drawn from an evaluation.

Figures are in `figures`, one per file; each is a function of one or more `RunEvaluation` objects. Training, web pages
and the tables of the studies do not belong here.

>>> from torchmcl.analysis.figures import catalogue
>>> [entry.name for entry in catalogue.FIGURES][:2]
['assignment_matrix', 'share_over_time']
"""

from torchmcl.analysis.evaluation import calibrate_run, evaluate_run
from torchmcl.analysis.run_evaluation import RunEvaluation

__all__ = ["RunEvaluation", "calibrate_run", "evaluate_run"]
