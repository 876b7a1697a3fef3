"""The report: one self-contained HTML page on one run, or on several runs side by side.

This folder holds the page's templates and the values, warnings and metric descriptions that they show. Figures and
metrics are computed in `analysis`.
"""

from torchmcl.reporting.write import write

__all__ = ["write"]
