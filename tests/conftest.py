import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# By other chance each time only where a longer run is asked for (`make fuzz`).
settings.register_profile(
    "torchmcl", deadline=None, max_examples=60, derandomize="TORCHMCL_FUZZ" not in os.environ, database=None
)
settings.load_profile("torchmcl")

# One thread a worker: `pytest -n 2` fills two cores, and tensors here are small.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A run of AMCL on digits, good enough to be asked, of this worker alone: read it, or copy it first."""
    from torchmcl.training import fit

    folder = tmp_path_factory.mktemp("shared") / "run"
    options = {"members": 3, "epochs": 8, "warmup": 3, "width": 8, "preset": "light", "k": 1}
    fit("amcl", "simple_cnn", "digits", out=folder, quiet=True, **options)
    return folder


@pytest.fixture(scope="session")
def digits_test():
    """The test digits, as they were read."""
    from torchmcl import data

    return data.load("digits", parts=("test",)).test


def pytest_terminal_summary(terminalreporter):
    """How many cases of bad input were tried, over all workers, and by which tests."""
    cases = Counter()
    for report in terminalreporter.stats.get("", []):  # of setups and teardowns: the latter know what was noted
        if report.when == "teardown":
            cases[Path(report.fspath).stem.removeprefix("test_")] += dict(report.user_properties).get("cases", 0)
    if cases.total():
        each = ", ".join(f"{name} {count}" for name, count in sorted(cases.items()) if count)
        terminalreporter.write_line(f"bad input: {cases.total()} cases, each ended well ({each})")
