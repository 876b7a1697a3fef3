"""Evaluation of trained runs on data sets, Grad-CAM, and the figures drawn from an evaluation.

Figures are in `figures`, one per file; each is a function of one or more `RunEvaluation` objects. Training, web pages
and the tables of the studies do not belong here.

>>> from torchmcl.analysis.figures import catalogue
>>> [entry.name for entry in catalogue.FIGURES][:2]
['assignment_matrix', 'share_over_time']
"""
