"""One self-contained HTML page on a run, or on several."""

from torchmcl.reporting.write import write

__all__ = ["write"]
