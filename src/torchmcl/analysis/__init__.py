"""Figures, one a file; each is a function from a trained run, as `torchmcl.analysis.evaluation.look` sees it, to a Figure.

>>> from torchmcl.analysis.figures import catalogue
>>> [entry.name for entry in catalogue.FIGURES][:2]
['assignment_matrix', 'share_over_time']
"""
