"""What a test needs from its machine: without it, the test is skipped; where TORCHMCL_NO_SKIPS is set (CI), it fails.

Such a skip has a reason that begins with "needs ": a browser, real data, an extra of pyproject.toml. Any other skip
(no LaTeX, no permission to mount a disk) remains a skip.
"""

import os

import pytest

NO_SKIPS = "TORCHMCL_NO_SKIPS"


def met(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    """The report of a test or a module; a skip for an unmet need becomes a failure where TORCHMCL_NO_SKIPS is set."""
    if os.environ.get(NO_SKIPS) and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith("needs "):
            report.outcome = "failed"
            report.longrepr = f"{reason} ({NO_SKIPS} is set, so this is not skipped)"
            if report.when == "setup":  # a failed test, not an error in its setup
                report.when = "call"
    return report
