"""One self-contained HTML page on a run, or on several."""

from torchmcl.report.write import write

__all__ = ["write"]
