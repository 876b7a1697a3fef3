"""Analysis of trained runs: evaluation on data sets, calibration and figures.

Figures are in `figures`, one per file; each is a function of `RunEvaluation`. Training and web pages are elsewhere.

>>> from torchmcl.analysis.figures import catalogue
>>> [entry.name for entry in catalogue.FIGURES][:2]
['assignment_matrix', 'share_over_time']
"""
